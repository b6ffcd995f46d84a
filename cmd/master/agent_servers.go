package main

import (
	"context"
	"fmt"
	"sync"

	"github.com/sirupsen/logrus"

	"trainmaster/etcdstore"
)

// lateRoster finds parameter servers through etcd. It opens etcd when the first address is needed: few trainers need any.
type lateRoster struct {
	ctx  context.Context
	open func() (*etcdstore.Store, error)
	log  *logrus.Entry

	mu     sync.Mutex
	store  *etcdstore.Store
	roster *etcdstore.Roster // nil: not opened
}

func (r *lateRoster) opened() (*etcdstore.Roster, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.roster == nil {
		store, err := r.open()
		if err != nil {
			return nil, fmt.Errorf("find the parameter servers: %w", err)
		}
		r.store, r.roster = store, store.FollowServers(r.ctx)
	}
	return r.roster, nil
}

// addrs is [params.Config.Addrs].
func (r *lateRoster) addrs(ctx context.Context) ([]string, error) {
	roster, err := r.opened()
	if err != nil {
		return nil, err
	}
	return addrsOf(roster, r.log)(ctx)
}

// during is [params.Config.During].
func (r *lateRoster) during(parent context.Context, index int, addr string) (context.Context, context.CancelFunc) {
	roster, err := r.opened()
	if err != nil { // not after addrs
		return context.WithCancel(parent)
	}
	return roster.During(parent, index, addr)
}

func (r *lateRoster) close() {
	if r.store != nil {
		r.store.Close()
	}
}

// addrsOf returns a function that waits for the parameter servers of a job, and logs what it waits for.
func addrsOf(roster *etcdstore.Roster, log *logrus.Entry) func(context.Context) ([]string, error) {
	return func(ctx context.Context) ([]string, error) {
		return roster.Addrs(ctx, func(missing []int) {
			if missing == nil {
				log.Warn("waiting for parameter servers: no master has said how many there are; start the master with --ps N, and N times master pserver --endpoints ...")
				return
			}
			log.WithField("missing", missing).Info("waiting for parameter servers; start each with: master pserver --endpoints ...")
		})
	}
}
