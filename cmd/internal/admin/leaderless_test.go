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
