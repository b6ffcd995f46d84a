package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/pserver/checkpoint"
)

// latestSet is the set that etcd names, 0 shards when it names none.
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

// awaitSet waits for a set of so many servers that is newer than another one, and returns its file.
func (j *job) awaitSet(servers int, after uint64) (set *checkpoint.Set, file string) {
	j.t.Helper()
	eventually(j.t, fmt.Sprintf("a set of %d servers after set %d", servers, after), func() (bool, string) {
		set = j.latestSet()
		return set.Number > after && len(set.Shards) == servers, set.String()
	})
	return set, filepath.Join(j.checkpoints(), "sets", setFile(set.Number))
}

func setFile(number uint64) string { return fmt.Sprintf("%08d.json", number) }

// A job whose processes were all killed goes on with another number of parameter servers: from
// the same bits, and to its end.
func TestAnotherNumberOfServers(t *testing.T) {
	for _, mode := range []string{"async", "sync"} {
		for _, n := range []int{3, 1} {
			t.Run(fmt.Sprintf("%s/%d", mode, n), func(t *testing.T) {
				t.Parallel()
				const passes = 4
				j := newJob(t)
				flags := []string{"--passes", fmt.Sprint(passes), "--update-mode", mode, "--checkpoint-keep", "1000"} // none goes while it is looked at
				processes := []*process{j.master(append(flags, "--ps", "2")...), j.server(mortal...), j.server(mortal...), j.trainer("a"), j.trainer("b")}
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
					j.server(mortal...).awaitLog("parameters restored")
				}
				_, after := j.awaitSet(n, before.Number) // nobody trains yet
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

// F52 and F53: bits of the newest set rot on the disk while nobody runs. Servers that start say so and take the set before
// it, all of them, and the job goes on from there.
func TestRottenSet(t *testing.T) {
	t.Parallel()
	j := newJob(t)
	flags := []string{"--passes", "100000", "--ps", "2", "--checkpoint-keep", "1000"} // none goes while it is looked at
	processes := []*process{j.master(flags...), j.server(), j.server(), j.trainer("a")}
	j.awaitSet(2, 2)
	for _, p := range processes {
		p.kill()
	}
	newest := j.latestSet()
	older := filepath.Join(t.TempDir(), "older.safetensors")
	run(t, j.dir, "model", "export", j.setArg(newest.Number-1), "--file", older).wants(t, 0)
	folder := filepath.Join(j.checkpoints(), "ps-1", newest.Shards[1].Generation.String())
	weights := filepath.Join(folder, checkpoint.WeightsFile)
	data, err := os.ReadFile(weights)
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)/2] ^= 1
	if err := os.WriteFile(weights, data, 0o600); err != nil {
		t.Fatal(err)
	}

	j.master(flags...)
	for _, s := range []*process{j.server(), j.server()} {
		s.awaitLog("parameters restored")
		if text := s.log(); !strings.Contains(text, folder) || !strings.Contains(text, checkpoint.WeightsFile+" has ") {
			t.Errorf("a server does not say that %s is damaged", weights)
		}
	}
	_, after := j.awaitSet(2, newest.Number) // nobody trains yet
	run(t, j.dir, "model", "diff", older, after).wants(t, 0)
	j.trainer("a")
	status := j.awaitStatus("the master answers", func(*pb.StatusReply) bool { return true })
	j.awaitStatus("training goes on", func(s *pb.StatusReply) bool { return s.Totals.GetCommits() > status.Totals.GetCommits()+10 })
}
