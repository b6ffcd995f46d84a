package pods

import (
	"context"
	"errors"
	"maps"
	"net"
	"slices"
	"time"

	"trainmaster/master/podmanager"
	"trainmaster/master/store"
)

// registered takes the claims of the parameter servers.
func (t *term) registered(claims []store.Server) {
	t.mu.Lock()
	t.claims = claims
	t.mu.Unlock()
	t.box.Wake()
}

const (
	evictTimeout = 3 * time.Second
	evictPause   = 100 * time.Millisecond // a server that has just ended seems to renew its claim for a second
	evictRetry   = time.Second            // after an error of etcd
	evictLooks   = 50
)

// evict frees the indices of parameter servers whose pods have ended: the next attempt, and a standby, take them without waiting for the lease. A
// claim belongs to the pod with its address. The address of a pod can be given to another pod later: a claim that is renewed stays.
func (t *term) evict(ctx context.Context, pods []podmanager.Pod) {
	ended := map[string]string{} // address -> name
	for _, p := range pods {
		//guard:server-of-an-ended-pod-evicted
		if p.Role == podmanager.Server && p.Instance == t.instance && p.Address != "" && p.Ended() {
			ended[p.Address] = p.Name
		}
	}
	for _, p := range pods {
		if !p.Ended() {
			delete(ended, p.Address)
		}
	}
	t.mu.Lock()
	claims := t.claims
	t.mu.Unlock()
	maps.DeleteFunc(t.evicted, func(c store.Server, _ bool) bool { return !slices.Contains(claims, c) })
	for _, c := range claims {
		host, _, err := net.SplitHostPort(c.Addr)
		if pod := ended[host]; err == nil && pod != "" && !t.evicted[c] {
			t.evicted[c] = true
			t.background(func() error { return t.evictClaim(ctx, c, pod) })
		}
	}
}

// evictClaim ends a claim, unless its server renews it.
func (t *term) evictClaim(ctx context.Context, c store.Server, pod string) error {
	log := t.config.Log.WithField("server", c.Index).WithField("pod", pod)
	for looks := 0; looks < evictLooks && ctx.Err() == nil; {
		bounded, cancel := context.WithTimeout(ctx, evictTimeout)
		err := t.config.Registry.Evict(bounded, c)
		cancel()
		pause := evictPause
		switch {
		case err == nil:
			log.Info("pod of a parameter server ended: index freed")
			return nil
		case errors.Is(err, store.ErrRenewed):
			looks++
		default:
			pause = evictRetry
		}
		t.Clock().Sleep(ctx, pause)
	}
	return nil
}
