package admin

import (
	"context"
	"testing"
	"time"

	"trainmaster/etcdstore"
	"trainmaster/etcdstore/etcdtest"
)

func TestMain(m *testing.M) { etcdtest.Main(m) }

// F358: only checks in a row count. While a master leads, and after it has led in between, the process continues.
func TestLeaderResetsTheTimeWithoutAMaster(t *testing.T) {
	store := etcdtest.Store(t)
	lock, err := store.Campaign(t.Context(), etcdstore.CampaignConfig{TTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	if err := lock.Announce(t.Context(), "10.0.0.1:8080", 1); err != nil {
		t.Fatal(err)
	}
	const limit = 2 * time.Second
	led, cancel := context.WithTimeout(t.Context(), 2*limit)
	defer cancel()
	if awaitNoLeader(led, store, limit) {
		t.Error("while a master leads: expected no end")
	}
	if err := lock.Resign(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !awaitNoLeader(t.Context(), store, limit) {
		t.Error("without a master: expected the end")
	}
}

// A master leads all the time, and etcd answers each read, in 150 ms. The process continues.
func TestSlowEtcdIsNoMissingLeader(t *testing.T) {
	job := etcdtest.NewJob(t)
	store := etcdtest.Open(t, etcdtest.Endpoint(t), job)
	lock, err := store.Campaign(t.Context(), etcdstore.CampaignConfig{TTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	if err := lock.Announce(t.Context(), "10.0.0.1:8080", 1); err != nil {
		t.Fatal(err)
	}
	proxy := etcdtest.StartProxy(t, etcdtest.Endpoint(t))
	slow := etcdtest.Open(t, proxy.Endpoint(), job)
	if _, err := slow.MasterAddr(t.Context()); err != nil {
		t.Fatal(err)
	}
	proxy.Delay(75*time.Millisecond, 75*time.Millisecond)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if awaitNoLeader(ctx, slow, time.Second) {
		t.Error("expected no end: a master leads, and etcd answers")
	}
}
