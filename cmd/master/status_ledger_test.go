package main

import (
	"context"
	"strings"
	"testing"
	"time"

	"trainmaster/cmd/internal/cli"
	"trainmaster/cmd/internal/view"
	"trainmaster/etcdstore/etcdtest"
	"trainmaster/ledger"
	"trainmaster/master"
)

// statusSealer seals nothing and reports a given status.
type statusSealer struct{ status ledger.Status }

func (statusSealer) Check(context.Context, string) error { return nil }

func (statusSealer) Run(ctx context.Context, _ ledger.Lock, _ string, _ func() ledger.Progress) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

func (s statusSealer) Status() ledger.Status { return s.status }

func TestStatusNamesLedgerThatIsNotSealed(t *testing.T) {
	const dir = "/mnt/ledger/digits"
	for name, tt := range map[string]struct {
		status ledger.Status
		row    string // without line breaks; "": the table has no row
		json   view.LedgerStatus
	}{
		"sealed": {ledger.Status{Sealed: 7, Bytes: 8, Dir: dir}, "", view.LedgerStatus{Sealed: 7, Bytes: 8, Dir: dir}},
		"directory hangs": {
			ledger.Status{Sealed: 7, Dir: dir, Hangs: 42 * time.Second},
			"directory " + dir + " has not answered for 42s: check its file system; entries stay in etcd until then",
			view.LedgerStatus{Sealed: 7, Dir: dir, Hangs: 42},
		},
		"attempt failed": {
			ledger.Status{Dir: dir, Failures: 1, Failure: "no space left"},
			"the last attempt to seal failed: no space left; entries stay in etcd until then",
			view.LedgerStatus{Dir: dir, Failure: "no space left"},
		},
		"directory hangs after failure": {
			ledger.Status{Dir: dir, Failures: 1, Failure: "no space left", Hangs: time.Hour},
			"directory " + dir + " has not answered for 1h0m0s: check its file system; the last attempt to seal failed: no space left; entries stay",
			view.LedgerStatus{Dir: dir, Failure: "no space left", Hangs: 3600},
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := leadWith(t, etcdtest.Store(t), master.Config{}, statusSealer{tt.status}, nil)
			table := strings.Join(strings.Fields(runArgs(t, "status", "--addr", l.addr).stdout), " ")
			if _, row, found := strings.Cut(table, " ledger "); found != (tt.row != "") || !strings.HasPrefix(row, tt.row) {
				t.Errorf("table %q, expected a row %q", table, tt.row)
			}
			r := runArgs(t, "status", "-o", "json", "--addr", l.addr)
			r.wants(t, cli.ExitOK)
			if got := decode[view.Status](t, r.stdout).Ledger; got == nil || *got != tt.json {
				t.Errorf("JSON %+v, expected %+v", got, tt.json)
			}
		})
	}
	l := leadWith(t, etcdtest.Store(t), master.Config{NoLedger: true}, statusSealer{}, nil)
	if r := runArgs(t, "status", "-o", "json", "--addr", l.addr); !strings.Contains(r.stdout, `"ledger": null`) {
		t.Errorf("status of a master without a ledger: %s", r.stdout)
	}
}
