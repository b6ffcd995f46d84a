package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/pserver/checkpoint"
)

// latestSet returns the set that etcd names, or an empty set.
func (j *job) latestSet() *checkpoint.Set {
	j.t.Helper()
	value, _, err := j.store.Value(j.t.Context(), "/checkpoints/latest")
	if err != nil {
		j.t.Fatal(err)
	}
	if value == nil {
		return &checkpoint.Set{}
	}
	set, err := checkpoint.ParseSet(value)
	if err != nil {
		j.t.Fatal(err)
	}
	return set
}

// awaitSet waits for a set of the given number of servers that is newer than the set after. It returns the set and its file.
func (j *job) awaitSet(servers int, after uint64) (set *checkpoint.Set, file string) {
	j.t.Helper()
	eventually(j.t, fmt.Sprintf("a set of %d servers after set %d", servers, after), func() (bool, string) {
		set = j.latestSet()
		return set.Number > after && len(set.Shards) == servers, set.String()
	})
	return set, filepath.Join(j.checkpoints(), "sets", setFile(set.Number))
}

func setFile(number uint64) string { return fmt.Sprintf("%08d.json", number) }

// All processes of a job are killed. It continues with another number of parameter servers, from identical parameters.
func TestRestartWithAnotherNumberOfServers(t *testing.T) {
	for _, mode := range []string{"async", "sync"} {
		for _, n := range []int{3, 1} {
			t.Run(fmt.Sprintf("%s/%d", mode, n), func(t *testing.T) {
				t.Parallel()
				const passes = 4
				j := newJob(t)
				flags := []string{"--passes", fmt.Sprint(passes), "--update-mode", mode, "--checkpoint-keep", "1000"} // pruning removes no set
				processes := []*process{j.master(append(flags, "--ps", "2")...), j.server(shortLease...), j.server(shortLease...), j.trainer("a"), j.trainer("b")}
				j.awaitMidPass(2)
				began := j.latestSet().Number
				j.awaitSet(2, began)
				status := j.awaitStatus("a checkpoint is complete", func(s *pb.StatusReply) bool { return s.Checkpoint.GetSet() > 0 })
				if status.Checkpoint.Failure != "" {
					t.Errorf("the checkpoint failed: %s", status.Checkpoint.Failure)
				}
				for _, p := range processes {
					p.kill()
				}
				before := j.latestSet()
				model := filepath.Join(t.TempDir(), "before.safetensors")
				run(t, j.dir, "model", "export", filepath.Join(j.checkpoints(), "sets", fmt.Sprintf("%08d.json", before.Number)), "--file", model).wants(t, 0)

				if _, err := j.store.Client().Put(t.Context(), j.store.Prefix()+"/ps_desired", fmt.Sprint(n)); err != nil {
					t.Fatal(err)
				}
				master := j.master(append(flags, "--ps", fmt.Sprint(n))...)
				for range n {
					j.server(shortLease...).awaitLog("parameters restored")
				}
				_, after := j.awaitSet(n, before.Number) // no trainer runs yet
				run(t, j.dir, "model", "diff", model, after).wants(t, 0)
				trainers := []*process{j.trainer("a"), j.trainer("b")}
				for _, trainer := range trainers {
					trainer.wantExit(0)
				}
				master.wantExit(0)
				run(t, j.dir, "model", "inspect", j.checkpoints()).wants(t, 0)
				run(t, j.dir, "model", "diff", model, j.model()).wants(t, 1, "differ")
				j.wantAccuracy(0.80)
			})
		}
	}
}

// corruptSet changes a byte of the weights of server 1 in a set, and returns the file.
func (j *job) corruptSet(set *checkpoint.Set) (weights string) {
	j.t.Helper()
	weights = filepath.Join(j.checkpoints(), "ps-1", set.Shards[1].Generation.String(), checkpoint.WeightsFile)
	data, err := os.ReadFile(weights)
	if err != nil {
		j.t.Fatal(err)
	}
	data[len(data)/2] ^= 1
	if err := os.WriteFile(weights, data, 0o600); err != nil {
		j.t.Fatal(err)
	}
	return weights
}

// awaitRefusal waits until the status names the damaged file and the command that selects another set.
func (j *job) awaitRefusal(weights string) {
	j.t.Helper()
	status := j.awaitStatus("servers wait for a set", func(s *pb.StatusReply) bool { return s.GetParameterServers().GetUnrestored() != "" })
	if text := status.GetParameterServers().GetUnrestored(); !strings.Contains(text, filepath.Dir(weights)) || !strings.Contains(text, checkpoint.WeightsFile+" has ") || !strings.Contains(text, "master checkpoint use") {
		j.t.Errorf("status: expected %s and the command, found: %s", weights, text)
	}
}

// useSet runs the command that selects a set.
func (j *job) useSet(number uint64) outcome {
	j.t.Helper()
	return run(j.t, j.dir, j.in("checkpoint", "use", fmt.Sprint(number), "--checkpoint-dir", j.checkpoints())...)
}

// F52, F53: the newest set is damaged on the disk while no process runs. Servers that start report the damage and wait until an
// operator selects the previous set. The job continues from that set.
func TestDamagedSetWaitsForOperator(t *testing.T) {
	t.Parallel()
	j := newJob(t)
	flags := []string{"--passes", "100000", "--ps", "2", "--checkpoint-keep", "1000"} // pruning removes no set
	processes := []*process{j.master(flags...), j.server(shortLease...), j.server(shortLease...), j.trainer("a")}
	j.awaitSet(2, 2)
	for _, p := range processes {
		p.kill()
	}
	newest := j.latestSet()
	older := filepath.Join(t.TempDir(), "older.safetensors")
	run(t, j.dir, "model", "export", j.setArg(newest.Number-1), "--file", older).wants(t, 0)
	weights := j.corruptSet(newest)

	j.master(flags...)
	servers := []*process{j.server(shortLease...), j.server(shortLease...)}
	j.awaitRefusal(weights)
	if named := j.latestSet(); named.Number != newest.Number {
		t.Errorf("set %d is named, expected %d before the command", named.Number, newest.Number)
	}
	list := run(t, j.dir, j.in("checkpoint", "list", "--checkpoint-dir", j.checkpoints())...)
	if list.wants(t, 0); !strings.Contains(list.stdout, "DAMAGED") || !strings.Contains(list.stdout, checkpoint.WeightsFile) {
		t.Errorf("list: expected the damaged file, found:\n%s", list.stdout)
	}
	asJSON := run(t, j.dir, j.in("checkpoint", "list", "--checkpoint-dir", j.checkpoints(), "-o", "json")...)
	var sets []struct {
		Set      uint64
		Complete bool
	}
	if err := json.Unmarshal([]byte(asJSON.stdout), &sets); err != nil || len(sets) < 2 || sets[0].Complete == sets[1].Complete {
		t.Errorf("expected a damaged and a complete set, found %v (%v) in:\n%s", sets, err, asJSON.stdout)
	}
	j.useSet(newest.Number).wants(t, 1, "expected a complete set", checkpoint.WeightsFile)
	j.useSet(newest.Number-1).wants(t, 0)
	for _, s := range servers {
		s.awaitLog("parameters restored")
	}
	_, after := j.awaitSet(2, newest.Number) // no trainer runs yet
	run(t, j.dir, "model", "diff", older, after).wants(t, 0)
	j.trainer("a")
	status := j.awaitStatus("all servers have restored a set", func(s *pb.StatusReply) bool { return s.GetParameterServers().GetUnrestored() == "" })
	j.awaitStatus("training continues", func(s *pb.StatusReply) bool { return s.Totals.GetCommits() > status.Totals.GetCommits()+10 })
}

// F52: in a job with --on-shard-loss rewind, data and parameters continue from the cut that an operator selects. Each record is
// trained once per pass. The command is refused while a process of the job runs.
func TestDamagedSetOfARewindJob(t *testing.T) {
	t.Parallel()
	c := newCounters(t)
	ledgers := []string{"--ledger-dir", t.TempDir()}
	_, m, servers, trainers := c.started(rewindPasses, ledgers...)
	c.awaitSets(0, 3)
	for _, p := range append(append([]*process{m}, servers...), trainers...) {
		p.kill()
	}
	newest := c.latestSet()
	weights := c.corruptSet(newest)

	_, m, servers, trainers = c.started(rewindPasses, ledgers...)
	c.awaitRefusal(weights)
	c.useSet(newest.Number-1).wants(t, 1, "stop all of them")
	for _, p := range append(append([]*process{m}, servers...), trainers...) {
		p.kill()
	}
	eventually(t, "the command succeeds after the leases expire", func() (bool, string) {
		r := c.useSet(newest.Number - 1)
		return r.code == 0, r.stderr
	})
	_, m, _, trainers = c.started(rewindPasses, ledgers...)
	c.hurry()
	for _, p := range trainers {
		p.wantExit(0)
	}
	m.wantExit(0)
	c.wantCounted(rewindPasses)
	run(t, c.dir, append(c.in("verify"), ledgers...)...).wants(t, 0)

}
