package e2e

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"trainmaster/internal/httpproxy"
	"trainmaster/internal/objectstore/s3test"
	"trainmaster/internal/tcpproxy"
	pb "trainmaster/proto/trainmaster/v1"
)

// A job stores its checkpoints in a bucket. While the object store is unreachable, no set is written, the status reports the
// failure, and training continues. After all processes were killed, another number of servers starts from the newest set.
// The commands read the bucket.
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

// A job whose dataset is in an object store trains each record once in each pass, although the store refuses, cuts and loses answers, and the
// master and a trainer are killed. Without permission, a URL is refused. If an object is replaced, its task fails with its name.
func TestDatasetInABucket(t *testing.T) {
	t.Parallel()
	const passes = 4
	store := s3test.Start(t)
	proxy, err := httpproxy.New(store.Addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(proxy.Close)
	j := newJob(t)
	for _, path := range j.data.Train.Paths {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		store.Put(t, "train/"+filepath.Base(path), data)
	}
	url := func(key string) string { return s3test.URLAt(proxy.Addr(), key) }
	stat := run(t, j.dir, "recordio", "stat", url("train/"+filepath.Base(j.data.Train.Paths[0])))
	if stat.wants(t, 0); !strings.Contains(stat.stdout, "s3://"+s3test.Bucket+"/train/") {
		t.Errorf("recordio stat: found %s", stat.stdout)
	}
	run(t, j.dir, "recordio", "verify", url("train/*")).wants(t, 0)

	flags := []string{"--passes", fmt.Sprint(passes), "--ps", "1"}
	master := j.master(append(flags, "--data-roots", url("other"))...)
	j.server()
	refused := j.trainerOn("refused", []string{url("train/*")})
	refused.wantExit(1)
	if text := refused.log(); !strings.Contains(text, "outside of --data-roots") {
		t.Errorf("log of the trainer: expected the refusal of a URL outside of --data-roots, found %s", text)
	}
	term := j.awaitLeader(0)
	master.kill()
	flags = append(flags, "--data-roots", url("train"))
	master = j.master(flags...)
	term = j.awaitLeader(term)
	cache := filepath.Join(j.dir, "cache")
	a, b, c := j.trainerOn("a", []string{url("train/*")}), j.trainerOn("b", []string{url("train/")}), j.trainerOn("c", []string{url("train/digits-*")}, "--cache-dir", cache)
	for i, fault := range []httpproxy.Fault{{Status: 503}, {CutAfter: 100}, {LoseAnswer: true}, {Missing: 50}} {
		j.awaitMidPass(uint32(1 + i/2))
		proxy.Inject(5, fault)
	}
	master.kill()
	master = j.master(flags...)
	j.awaitLeader(term)
	b.kill()
	a.wantExit(0)
	c.wantExit(0)
	master.wantExit(0)
	j.wantExactlyOnce(passes, tasksPerPass)
	if entries, err := filepath.Glob(filepath.Join(cache, "*.range")); err != nil || len(entries) == 0 {
		t.Errorf("expected entries in the cache, found %q, %v", entries, err)
	}
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
