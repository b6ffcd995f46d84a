package trainer_test

import (
	"errors"
	"io"
	"maps"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"trainmaster/etcdstore/etcdtest"
	"trainmaster/master"
	"trainmaster/master/mastertest"
	"trainmaster/master/strategy"
	"trainmaster/taskqueue"
	"trainmaster/trainer"
)

// A client receives the hyper-parameters of its tasks and reports statistics, over each protocol. A rule about them ends the job.
func TestClientFollowsTheStrategy(t *testing.T) {
	overBoth(t, func(t *testing.T) {
		file := []byte(`
hyper-parameters: {dropout: {schedule: constant, value: 0.25}, learning-rate: {schedule: constant, value: 0.5}}
stop: [{when: job.peak-memory-bytes > 250}]
`)
		parsed, err := strategy.Parse(file)
		if err != nil {
			t.Fatal(err)
		}
		store := etcdtest.Store(t)
		config := master.Config{}
		config.Queue.Strategy = parsed.OfJob(file, false)
		r := mastertest.Start(t, store, config)
		r.Register(8)
		logger, _ := logtest.NewNullLogger()
		c, err := trainer.Join(within(t), trainer.Config{ID: "a", Locate: trainer.At(r.Addr), Heartbeat: 50 * time.Millisecond, Log: logrus.NewEntry(logger), Protocol: protocol})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		want := map[string]float64{"dropout": 0.25, "learning-rate": 0.5}
		tasks := 0
		for task, err := c.Next(within(t), nil); ; task, err = c.Next(within(t), task) {
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			tasks++
			if found := c.HyperParameters(task); !maps.Equal(found, want) {
				t.Errorf("task %d: expected %v, found %v", tasks, want, found)
			}
			c.Trained(task, taskqueue.RunStats{Records: 2, Seconds: 4, PeakMemory: int64(100 * tasks), GPUUtilization: 0.5})
		}
		if tasks != 4 { // the last task was prefetched before the finish that ended the job
			t.Errorf("expected the end after 3 tasks and a prefetched one, found %d tasks", tasks)
		}
		value, _, err := store.Value(t.Context(), taskqueue.StatisticsKey)
		if err != nil || string(value) != `{"records":6,"timed":6,"seconds":12,"peak_memory":300,"gpu_seconds":12,"gpu_busy_s":6}` {
			t.Errorf("found %s, %v", value, err)
		}
	})
}
