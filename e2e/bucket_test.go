package e2e

import (
	"net/url"
	"path/filepath"
	"testing"

	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/pserver/checkpoint/storage/s3test"
	"trainmaster/tcpproxy"
)

// A job keeps its checkpoints in a bucket. While the store is away no set is written, which status says, and training goes on; after
// everything was killed, another number of servers goes on from the newest set; tools read the bucket.
func TestCheckpointsInABucket(t *testing.T) {
	t.Parallel()
	store := s3test.Start(t)
	proxy, err := tcpproxy.New(store.Addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(proxy.Close)
	j := newJob(t)
	j.bucket = s3test.URLAt(proxy.Addr(), "jobs/digits")
	flags := []string{"--passes", "25"}
	processes := []*process{j.master(append(flags, "--ps", "2")...), j.server(), j.server(), j.trainer("a"), j.trainer("b")}
	j.awaitStatus("a checkpoint is complete", func(s *pb.StatusReply) bool { return s.Checkpoint.GetSet() > 0 })

	proxy.Refuse(true)
	proxy.Cut()
	away := j.awaitStatus("a checkpoint fails", func(s *pb.StatusReply) bool { return s.Checkpoint.GetFailure() != "" })
	j.awaitStatus("training goes on without the store", func(s *pb.StatusReply) bool {
		return s.Totals.GetCommits() > away.Totals.GetCommits() && s.Checkpoint.GetFailure() != ""
	})
	proxy.Refuse(false)
	j.awaitStatus("the store is back", func(s *pb.StatusReply) bool {
		return s.Checkpoint.GetFailure() == "" && s.Checkpoint.GetSet() > away.Checkpoint.GetSet()
	})
	for _, p := range processes {
		p.kill()
	}
	before := j.latestSet()
	exported := filepath.Join(t.TempDir(), "before.safetensors")
	run(t, j.dir, "model", "export", j.setURL(before.Number), "--file", exported).wants(t, 0)

	if _, err := j.store.Client().Put(t.Context(), j.store.Prefix()+"/ps_desired", "3"); err != nil {
		t.Fatal(err)
	}
	master := j.master(append(flags, "--ps", "3")...)
	for range 3 {
		j.server().awaitLog("parameters restored")
	}
	j.awaitStatus("a set of three servers", func(s *pb.StatusReply) bool { return s.Checkpoint.GetSet() > before.Number })
	run(t, j.dir, "model", "diff", exported, j.bucket).wants(t, 0) // nobody trains yet
	trainers := []*process{j.trainer("a"), j.trainer("b")}
	for _, trainer := range trainers {
		trainer.wantExit(0)
	}
	master.wantExit(0)
	run(t, j.dir, "model", "inspect", j.bucket).wants(t, 0)
	run(t, j.dir, "model", "diff", exported, j.model()).wants(t, 1, "differ")
	j.wantAccuracy(0.80)
}

// setURL is the file of a set in the bucket.
func (j *job) setURL(number uint64) string {
	u, err := url.Parse(j.bucket)
	if err != nil {
		j.t.Fatal(err)
	}
	return u.JoinPath("sets", setFile(number)).String()
}
