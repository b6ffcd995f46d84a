package e2e

import (
	"bytes"
	"fmt"
	"os"
	"testing"
)

// trainedDeterministically returns the model of three trainers. The trainers start in the given order and have different
// pauses before every record. midway runs while they train.
func trainedDeterministically(t *testing.T, model, servers string, delays map[string]string, midway func(*job), order ...string) []byte {
	t.Helper()
	j := newJob(t)
	tasks := tasksPerPass
	if model == "fm" {
		tasks = j.useFlights()
	}
	flags := []string{"--passes", "2", "--ps", servers, "--update-mode", "sync", "--trainers", "3", "--seed", "7", "--deterministic", "--lease-ttl", "60s"}
	master := j.master(flags...)
	for range servers[0] - '0' {
		j.server()
	}
	var trainers []*process
	for _, id := range order {
		trainers = append(trainers, j.trainer(id, "--model", model, "--record-delay", delays[id]))
	}
	midway(j)
	for _, trainer := range trainers {
		trainer.wantExit(0)
	}
	master.wantExit(0)
	j.wantVerified(2, tasks) // the journal has only the rest of a task after a rollback
	saved, err := os.ReadFile(j.model())
	if err != nil {
		t.Fatal(err)
	}
	return saved
}

// The models of two runs are equal. The runs differ in the speed and the order of the trainers, and in the number of parameter
// servers, which changes during the first run.
func TestDeterministic(t *testing.T) {
	t.Parallel()
	for _, model := range []string{"mlp", "fm"} { // with tensors, and with embedding tables
		t.Run(model, func(t *testing.T) {
			t.Parallel()
			one := trainedDeterministically(t, model, "2", map[string]string{"a": "0s", "b": "1ms", "c": "3ms"}, func(j *job) {
				j.server()
				j.awaitSteps(0)
				run(t, j.dir, j.in("scale", "ps=3")...).wants(t, 0)
				j.awaitSteps(2)
				run(t, j.dir, j.in("scale", "ps=1")...).wants(t, 0)
				j.awaitSteps(2)
			}, "a", "b", "c")
			other := trainedDeterministically(t, model, "1", map[string]string{"a": "3ms", "b": "0s", "c": "0s"}, func(*job) {}, "c", "a", "b")
			if !bytes.Equal(one, other) {
				t.Errorf("expected equal models, found different models of %d and %d bytes", len(one), len(other))
			}
		})
	}
}

// A deterministic job with rollbacks produces the same model as without faults, whichever process is killed.
func TestDeterministicWithRollbacks(t *testing.T) {
	t.Parallel()
	const model, passes = "fm", 2 // with embedding tables
	delays := map[string]string{"a": "0s", "b": "300us", "c": "1ms"}
	want := trainedDeterministically(t, model, "2", delays, func(*job) {}, "a", "b", "c")

	j := newJob(t)
	tasks := j.useFlights()
	flags := []string{"--passes", fmt.Sprint(passes), "--ps", "2", "--update-mode", "sync", "--trainers", "3", "--seed", "7", "--deterministic",
		"--checkpoint-every", "100ms", "--session-ttl", "5s"}
	m := j.master(flags...)
	servers := []*process{j.server(shortLease...), j.server(shortLease...)}
	started := func(id string) *process { return j.trainer(id, "--model", model, "--record-delay", delays[id]) }
	trainers := []*process{started("c"), started("a"), started("b")}
	next := func() { set := j.latestSet().Number; j.awaitSet(2, set) }
	next()
	servers[1].kill()
	servers[1] = j.server(shortLease...)
	next()
	trainers[0].kill()
	trainers[0] = started("c")
	next()
	m.kill()
	m = j.master(flags...)
	for _, p := range trainers {
		p.wantExit(0)
	}
	m.wantExit(0)
	j.wantVerified(passes, tasks)
	got, err := os.ReadFile(j.model())
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("expected the model of a job without rollbacks, found different models of %d and %d bytes", len(got), len(want))
	}
}
