package e2e

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"trainmaster/master/evaluation"
	"trainmaster/master/rounds"
	"trainmaster/master/snapshot"
	"trainmaster/pserver/checkpoint"
	"trainmaster/taskqueue"
)

// atCut has the keys of evaluation and strategy in the snapshot of a checkpoint set.
func (j *job) atCut(set uint64) map[string][]byte {
	j.t.Helper()
	return decisionsOf(j.t, filepath.Join(j.checkpoints(), "sets", fmt.Sprintf("%08d.job", set)))
}

func decisionsOf(t testing.TB, path string) map[string][]byte {
	t.Helper()
	file, err := snapshot.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	keys := map[string][]byte{}
	for item, err := range file.Items() {
		if err != nil {
			t.Fatal(err)
		}
		if isDecision(item.Key) {
			keys[item.Key] = item.Value
		}
	}
	return keys
}

func isDecision(key string) bool {
	return strings.HasPrefix(key, taskqueue.EvaluationKey) || strings.HasPrefix(key, taskqueue.StrategyKey)
}

// wantCut checks that a job has the decisions of a cut, and records of no later rounds.
func wantCut(t testing.TB, what string, found, cut map[string][]byte, records bool) {
	t.Helper()
	state, err := evaluation.Decode(cut[evaluation.Key])
	if err != nil {
		t.Fatal(err)
	}
	n := uint64(0)
	for _, key := range slices.Sorted(maps.Keys(found)) {
		switch last := state.Rounds; {
		case !isDecision(key):
		case strings.HasPrefix(key, rounds.RecordPrefix):
			if state.Open != nil {
				last = state.Open.Number
			}
			if n++; key > rounds.RecordKey(last) {
				t.Errorf("%s: found %s, expected records up to round %d", what, key, last)
			}
			if state.Open != nil && key == rounds.RecordKey(last) && !bytes.Contains(found[key], []byte(`"ended":null`)) {
				t.Errorf("%s: %s: expected an open round, found %s", what, key, found[key])
			}
		case !bytes.Equal(found[key], cut[key]):
			t.Errorf("%s: %s: expected %q as of the cut, found %q", what, key, cut[key], found[key])
		}
	}
	for key := range cut {
		if found[key] == nil {
			t.Errorf("%s: expected %s, found none", what, key)
		}
	}
	if records && n < state.Rounds {
		t.Errorf("%s: expected the records of %d rounds, found %d", what, state.Rounds, n)
	}
}

// stored returns the keys of the job in etcd.
func (j *job) stored() map[string][]byte {
	j.t.Helper()
	keys, _, err := j.store.Prefixed(j.t.Context(), "/")
	if err != nil {
		j.t.Fatal(err)
	}
	return keys
}

// syncVersion returns the version of the last committed step.
func (j *job) syncVersion() uint64 {
	j.t.Helper()
	s, err := taskqueue.DecodeStep(j.stored()[taskqueue.StepKey])
	if err != nil {
		j.t.Fatal(err)
	}
	return s.Version
}

// F258: a rule of the strategy has ended a synchronous job. The job is restored at the cut of an earlier set, or saved at the cut of a set.
// It has the decisions and the rounds of that cut. The job continues until the rule holds again.
func TestJobAtAnEarlierCutHasTheDecisionsOfThatCut(t *testing.T) {
	t.Parallel()
	const limit, text = 140, `
hyper-parameters:
  dropout: {schedule: plateau, value: 0.5, figure: "loss:max", factor: 0.9, patience: 1}
stop:
  - when: job.step >= %d
`
	j := newJob(t)
	flags := []string{"--passes", "0", "--ps", "1", "--update-mode", "sync", "--checkpoint-every", "200ms", "--checkpoint-keep", "1000",
		"--evaluation-data", j.data.Test.Paths[0], "--evaluate-every", "20steps", "--best-metric", "loss:min", "--strategy",
		strategyFile(t, fmt.Sprintf(text, limit))}
	wantEnd := func(what string, args ...string) {
		t.Helper()
		m, s, trainer := j.master(append(flags, args...)...), j.server(shortLease...), j.trainer("a")
		trainer.wantExit(0)
		m.wantExit(0)
		s.kill()
		j.says("end of the job at step ", "status")
		if v := j.syncVersion(); v < limit {
			t.Errorf("%s: expected the end at version %d, found version %d", what, limit, v)
		}
		for i, e := range j.evaluations() {
			if i > 0 && e.Round != j.evaluations()[0].Round+uint64(i) {
				t.Errorf("%s: expected rounds one after the other, found round %d as element %d", what, e.Round, i)
			}
		}
	}
	wantEnd("first end")

	file := filepath.Join(j.dir, "job.tms")
	run(t, j.dir, j.in("snapshot", "save", file, "--checkpoint-dir", j.checkpoints())...).wants(t, 0)
	wantCut(t, "snapshot with parameters", decisionsOf(t, file), j.atCut(j.latestSet().Number), true)

	newest := j.latestSet().Number
	eventually(t, "the command succeeds after the leases expire", func() (bool, string) {
		o := j.useSet(newest)
		return o.code == 0, o.stderr
	})
	wantCut(t, "checkpoint use of the newest set", j.stored(), j.atCut(newest), true)
	if v := j.syncVersion(); v >= limit {
		t.Errorf("newest set: expected a version below %d, found %d", limit, v)
	}
	used := j.setWithRounds(2)
	eventually(t, "the command succeeds after the leases expire", func() (bool, string) {
		o := j.useSet(used)
		return o.code == 0, o.stderr
	})
	if v := j.syncVersion(); v >= limit {
		t.Fatalf("set %d is of version %d", used, v)
	}
	cut := j.atCut(used)
	wantCut(t, "checkpoint use", j.stored(), cut, true)
	wantEnd("after checkpoint use")

	if _, err := j.store.Client().Delete(t.Context(), j.store.Prefix()+"/", clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	resumed := j.setWithRounds(2)
	newer, err := filepath.Glob(filepath.Join(j.checkpoints(), "sets", "*.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range newer {
		if filepath.Base(path) > setFile(resumed) {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		}
	}
	wantEnd("after a resume", "--resume", j.checkpoints())
	list := j.evaluations()
	state, err := evaluation.Decode(j.atCut(resumed)[evaluation.Key])
	if err != nil || list[0].Round <= state.Rounds {
		t.Errorf("resumed after %d rounds: found the record of round %d, %v", state.Rounds, list[0].Round, err)
	}
}

// evaluations lists the rounds by the command.
func (j *job) evaluations() (list []evaluated) {
	j.t.Helper()
	o := run(j.t, j.dir, j.in("evaluations", "-o", "json")...)
	o.wants(j.t, 0)
	o.decode(j.t, &list)
	return list
}

// setWithRounds returns the number of the oldest set at whose cut at least n rounds had ended.
func (j *job) setWithRounds(n uint64) uint64 {
	j.t.Helper()
	numbers, err := (checkpoint.Store{Place: checkpoint.Disk(j.checkpoints())}).Sets(j.t.Context())
	if err != nil {
		j.t.Fatal(err)
	}
	for _, number := range slices.Backward(numbers) {
		value := j.atCut(number)[evaluation.Key]
		if value == nil {
			continue
		}
		if state, err := evaluation.Decode(value); err == nil && state.Rounds >= n {
			return number
		}
	}
	j.t.Fatalf("expected a set after %d rounds, found sets %v", n, numbers)
	return 0
}
