package pods_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"trainmaster/etcdstore/etcdtest"
	"trainmaster/master"
	"trainmaster/master/component"
	"trainmaster/master/mastertest"
	"trainmaster/master/podmanager"
	"trainmaster/master/pods"
	"trainmaster/master/rendezvous"
	"trainmaster/master/ring"
)

// counted counts the observations and the deletes of a cluster.
type counted struct {
	*cluster
	looks, deletes atomic.Int64
	lagging        atomic.Bool // a deleted pod is shown as before
}

func (c *counted) Pods() ([]podmanager.Pod, bool) {
	c.looks.Add(1)
	return c.cluster.Pods()
}

func (c *counted) Delete(ctx context.Context, a podmanager.Action) error {
	c.deletes.Add(1)
	if c.lagging.Load() {
		return nil
	}
	return c.cluster.Delete(ctx, a)
}

func (c *counted) start(t *testing.T, config podmanager.Config, withRing bool) *pods.Manager {
	t.Helper()
	store := etcdtest.Store(t)
	config.Job, config.OOMFactor = "j", 1.5
	setup := pods.Config{Pods: config, Clean: podmanager.CleanRunning, Cluster: c, Store: store}
	all := master.Config{}
	if withRing {
		all.Ring = ring.New(ring.Config{Rendezvous: rendezvous.Config{Min: 1, Max: 2}, Store: store})
		all.Components, setup.Ended = []component.Component{all.Ring}, all.Ring.Ended
	}
	m := pods.New(setup)
	all.Components, all.Pods = append(all.Components, m), m
	mastertest.StandBy(t, store, all, nil).AwaitLeading()
	mastertest.Eventually(t, "two pods", func() bool { return c.has("j-worker-0-0", "j-worker-1-0") })
	return m
}

// F322: the logs of a pod that has ended stay in the cluster, and each round sees them.
func TestPodsAndRingRestAfterTheEndOfAPod(t *testing.T) {
	c := &counted{cluster: newCluster()}
	c.start(t, workers(2), true)
	c.set("j-worker-0-0", ended(137))
	mastertest.Eventually(t, "another attempt", func() bool { return c.has("j-worker-0-0", "j-worker-0-1", "j-worker-1-0") })
	time.Sleep(500 * time.Millisecond) // the rounds of the relaunch end
	before := c.looks.Load()
	time.Sleep(2 * time.Second) // nothing changes
	if n := c.looks.Load() - before; n > 20 {
		t.Errorf("expected a few looks at the pods in 2 s at rest, found %d", n)
	}
}

// F322: the watch shows a delete later than the answer.
func TestDeleteIsNotRepeatedBeforeItIsObserved(t *testing.T) {
	c := &counted{cluster: newCluster()}
	m := c.start(t, podmanager.Config{Workers: podmanager.Group{Count: 2, Min: 1}, MaxRelaunch: 1}, false)
	c.lagging.Store(true)
	if _, err := m.ScaleWorkers(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	mastertest.Eventually(t, "a delete", func() bool { return c.deletes.Load() > 0 })
	time.Sleep(time.Second) // in which repetitions would come
	if n := c.deletes.Load(); n != 1 {
		t.Errorf("expected one delete, found %d", n)
	}
}
