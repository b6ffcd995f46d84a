package e2e

import (
	"net/url"
	"path/filepath"
	"testing"

	"trainmaster/internal/tcpproxy"
	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/pserver/checkpoint/storage/s3test"
)

// A job stores its checkpoints in a bucket. While the object store is unreachable, no set is written, the status reports the
// failure, and training continues. After all processes were killed, another number of servers starts from the newest set.
// The commands read the bucket.
func TestCheckpointsInABucket(t *testing.T) {
	t.Parallel()
	withRacedProgram(t)
	store := s3test.Start(t)
	proxy, err := tcpproxy.New(store.Addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(proxy.Close)
	j := newJob(t)
	j.bucket = s3test.URLAt(proxy.Addr(), "jobs/digits")
	flags := []string{"--passes", "25"}
	processes := []*process{j.master(append(flags, "--ps", "2")...), j.server(shortLease...), j.server(shortLease...), j.trainer("a"), j.trainer("b")}
	j.awaitStatus("a checkpoint is complete", func(s *pb.StatusReply) bool { return s.Checkpoint.GetSet() > 0 })

	proxy.Refuse(true)
	proxy.Cut()
	away := j.awaitStatus("a checkpoint fails", func(s *pb.StatusReply) bool { return s.Checkpoint.GetFailure() != "" })
	j.awaitStatus("training continues without the object store", func(s *pb.StatusReply) bool {
		return s.Totals.GetCommits() > away.Totals.GetCommits() && s.Checkpoint.GetFailure() != ""
	})
	proxy.Refuse(false)
	j.awaitStatus("the object store is reachable again", func(s *pb.StatusReply) bool {
		return s.Checkpoint.GetFailure() == "" && s.Checkpoint.GetSet() > away.Checkpoint.GetSet()
	})
	for _, p := range processes {
		p.kill()
	}
	before := j.latestSet()
	exported := filepath.Join(t.TempDir(), "before.safetensors")
	run(t, j.dir, "model", "export", j.setArg(before.Number), "--file", exported).wants(t, 0)

	if _, err := j.store.Client().Put(t.Context(), j.store.Prefix()+"/ps_desired", "3"); err != nil {
		t.Fatal(err)
	}
	master := j.master(append(flags, "--ps", "3")...)
	for range 3 {
		j.server(shortLease...).awaitLog("parameters restored")
	}
	j.awaitStatus("a set of three servers", func(s *pb.StatusReply) bool { return s.Checkpoint.GetSet() > before.Number })
	run(t, j.dir, "model", "diff", exported, j.bucket).wants(t, 0) // no trainer runs yet
	trainers := []*process{j.trainer("a"), j.trainer("b")}
	for _, trainer := range trainers {
		trainer.wantExit(0)
	}
	master.wantExit(0)
	run(t, j.dir, "model", "inspect", j.bucket).wants(t, 0)
	run(t, j.dir, "model", "diff", exported, j.model()).wants(t, 1, "differ")
	j.wantAccuracy(0.80)
}

// After the loss of etcd, a job resumes from a bucket alone. A snapshot with the contents of the bucket resumes in another bucket.
func TestResumeFromABucket(t *testing.T) {
	t.Parallel()
	store := s3test.Start(t)
	c := newCounters(t)
	c.bucket = store.URL("jobs/counted")
	_, all := c.counted("sync")
	c.awaitSets(0, 3)
	for _, p := range all {
		p.kill()
	}
	file := filepath.Join(t.TempDir(), "job.tms")
	c.wantOutput(c.in("snapshot", "save", file, "--checkpoint-dir", c.bucket), "with its parameters", "with its ledger")

	c.loseEtcd(nil)
	m, all := c.counted("sync", "--resume", c.bucket)
	c.wantEnd(m, all)
	c.wantCounted(rewindPasses)

	for _, p := range all[1:3] { // the parameter servers
		p.kill()
	}
	c.loseEtcd(nil)
	run(t, c.dir, c.in("snapshot", "restore", file, "--checkpoint-dir", c.bucket)...).wants(t, 2, "directory is not empty")
	c.bucket = store.URL("jobs/again")
	c.wantOutput(c.in("snapshot", "restore", file, "--checkpoint-dir", c.bucket), "its parameters are from set")
	m, all = c.counted("sync")
	c.wantEnd(m, all)
	c.wantVerified(rewindPasses, countedRecords/countedChunk)
	c.wantCounted(rewindPasses)
}

// setArg returns the file of a set, or its URL in the bucket, as an argument of commands.
func (j *job) setArg(number uint64) string {
	if j.bucket == "" {
		return filepath.Join(j.checkpoints(), "sets", setFile(number))
	}
	u, err := url.Parse(j.bucket)
	if err != nil {
		j.t.Fatal(err)
	}
	return u.JoinPath("sets", setFile(number)).String()
}
