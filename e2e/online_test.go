package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	pb "trainmaster/proto/trainmaster/v1"
)

// F250: files are appended while the job trains. The master is killed after the parts of a segment are stored, and the append is repeated to
// the next master. After the close, a second pass follows over all data. Each task of both passes is counted once.
func TestAppendsWhileTraining(t *testing.T) {
	t.Parallel()
	const perFile = tasksPerPass / shards
	j := newJob(t)
	paths := j.data.Train.Paths
	watched := filepath.Join(j.dir, "watched")
	if err := os.Mkdir(watched, 0o700); err != nil {
		t.Fatal(err)
	}
	flags := []string{"--ps", "1", "--passes", "2", "--dataset-watch", "100ms", "--dataset", "clicks=" + watched + "/part-*,online"}
	master := j.master(flags...)
	j.server()
	j.awaitStatus("an empty dataset", func(s *pb.StatusReply) bool { return len(s.Datasets) == 1 })
	trainer := j.trainerOfMaster("a")
	term := j.awaitLeader(0)

	j.says("appended 1 file in "+fmt.Sprint(perFile)+" tasks: clicks has ", "dataset", "append", "clicks", paths[0])
	j.awaitStatus("a trained segment", func(s *pb.StatusReply) bool { return s.Datasets[0].Done == perFile })
	if s := j.awaitStatus("a status", func(*pb.StatusReply) bool { return true }); s.Datasets[0].Pass != 1 || !s.Datasets[0].Online || s.Datasets[0].Closed {
		t.Errorf("a trained segment: found %v", s.Datasets[0])
	}

	killed := j.killAtPart(master, 2)
	run(t, j.dir, j.in("dataset", "append", "clicks", paths[1])...) // its answer depends on the time of the kill
	killed()
	j.master(flags...)
	j.awaitLeader(term)
	j.says("clicks has "+fmt.Sprint(2*perFile)+" tasks", "dataset", "append", "clicks", paths[0], paths[1])
	if err := os.Link(paths[2], filepath.Join(watched, "part-2")); err != nil {
		t.Fatal(err)
	}
	j.awaitStatus("a watched file", func(s *pb.StatusReply) bool { return s.Datasets[0].Tasks == 3*perFile })
	if err := os.Link(paths[3], filepath.Join(watched, "part-3")); err != nil {
		t.Fatal(err)
	}
	j.says("clicks is closed with "+fmt.Sprint(4*perFile)+" tasks", "dataset", "close", "clicks")
	trainer.wantExit(0)
	j.wantPasses(2)
	j.wantAccuracy(0.8)
	of := run(t, j.dir, j.in("tasks", "--of-record", filepath.Join(watched, "part-3")+":0")...)
	of.wants(t, 0)
	if !strings.Contains(of.stdout, "2") {
		t.Errorf("found %s", of.stdout)
	}
}

// killAtPart kills the master as soon as a dataset has the given number of parts. The returned function waits for that.
func (j *job) killAtPart(master *process, n int) (wait func()) {
	j.t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{j.endpoint}})
	if err != nil {
		j.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(j.t.Context(), time.Minute)
	watch := client.Watch(ctx, "/", clientv3.WithPrefix(), clientv3.WithCreatedNotify())
	<-watch // it has begun
	killed := make(chan bool, 1)
	go func() {
		defer close(killed)
		for answer := range watch {
			for _, ev := range answer.Events {
				if key := string(ev.Kv.Key); strings.Contains(key, j.name+"/task_queues/tasks/") && strings.HasSuffix(key, fmt.Sprintf("/%04d", n-1)) {
					master.kill()
					killed <- true
					return
				}
			}
		}
	}()
	return func() {
		j.t.Helper()
		defer client.Close()
		defer cancel()
		if !<-killed {
			j.t.Fatalf("no part %d was stored", n)
		}
	}
}

// F251: requests that cannot be used change nothing: unknown and fixed datasets, globs without a match, damaged and replaced files, and a
// closed dataset. The errors say what to do.
func TestRefusedAppends(t *testing.T) {
	t.Parallel()
	j := newJob(t)
	paths := j.data.Train.Paths
	own := filepath.Join(j.dir, "own")
	content, err := os.ReadFile(paths[0])
	if err != nil {
		t.Fatal(err)
	}
	for path, bytes := range map[string][]byte{own: content, own + "-damaged": content[:len(content)-3]} {
		if err := os.WriteFile(path, bytes, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	j.master("--ps", "1", "--dataset", "clicks="+j.dir+"/none-*,online", "--dataset", "fixed="+paths[1])
	j.awaitStatus("two datasets", func(s *pb.StatusReply) bool { return len(s.Datasets) == 2 })
	refused := func(words string, args ...string) {
		t.Helper()
		o := run(t, j.dir, j.in(append([]string{"dataset"}, args...)...)...)
		if o.code == 0 || !strings.Contains(o.stderr, words) {
			t.Errorf("%v: expected an error with %q, found code %d: %s", args, words, o.code, o.stderr)
		}
	}
	refused("dataset has no tasks", "close", "clicks")
	j.says("appended 1 file in", "dataset", "append", "clicks", own)
	j.says("0 tasks: clicks has", "dataset", "append", "clicks", own)
	if err := os.WriteFile(own, append(content, content...), 0o600); err != nil {
		t.Fatal(err)
	}
	refused("there are clicks, fixed", "append", "books", paths[0])
	refused("--dataset 'fixed=PATH,online'", "append", "fixed", paths[0])
	refused("--dataset 'fixed=PATH,online'", "close", "fixed")
	refused("the glob matches no file", "append", "clicks", j.dir+"/none-*")
	refused(own+"-damaged", "append", "clicks", own+"-damaged", paths[2])
	refused("write new data to a new file", "append", "clicks", own)
	if s := j.awaitStatus("a status", func(*pb.StatusReply) bool { return true }); s.Datasets[0].Tasks != tasksPerPass/shards {
		t.Errorf("after refused requests: found %v", s.Datasets[0])
	}
	j.says("clicks is closed with ", "dataset", "close", "clicks")
	refused("dataset is closed", "append", "clicks", paths[0])
}

// F252: a synchronous job loses a server between two appends and rolls back. Each task of all segments is in one committed step.
func TestAppendsAcrossARollback(t *testing.T) {
	t.Parallel()
	const perFile = tasksPerPass / shards
	j := newJob(t)
	paths := j.data.Train.Paths
	m := j.master("--passes", "2", "--ps", "2", "--update-mode", "sync", "--checkpoint-every", "500ms",
		"--dataset", "clicks="+j.dir+"/none-*,online", "--evaluation-data", j.data.Test.Paths[0])
	servers := []*process{j.server(shortLease...), j.server(shortLease...)}
	j.awaitStatus("an empty dataset", func(s *pb.StatusReply) bool { return len(s.Datasets) > 0 })
	trainers := []*process{j.trainerOfMaster("x"), j.trainerOfMaster("y")}
	j.says("clicks has "+fmt.Sprint(perFile)+" tasks", "dataset", "append", "clicks", paths[0])
	j.awaitSet(2, 0)
	j.awaitStatus("a committed segment", func(s *pb.StatusReply) bool { return s.Datasets[0].Done == perFile })
	j.says("clicks has "+fmt.Sprint(3*perFile)+" tasks", "dataset", "append", "clicks", paths[1], paths[2])
	servers[1].kill()
	j.server(shortLease...)
	j.says("clicks has "+fmt.Sprint(4*perFile)+" tasks", "dataset", "append", "clicks", paths[3])
	j.says("clicks is closed with ", "dataset", "close", "clicks")
	for _, p := range trainers {
		p.wantExit(0)
	}
	m.wantExit(0)
	j.wantPasses(2)
}

// F252: a snapshot has the segments that were appended before it. Under another name, the job continues with them, and receives the later
// files again. The first job is not affected.
func TestSnapshotOfAnOnlineDataset(t *testing.T) {
	t.Parallel()
	const perFile = tasksPerPass / shards
	j := newJob(t)
	paths := j.data.Train.Paths
	flags := []string{"--ps", "1", "--passes", "2", "--dataset", "clicks=" + j.dir + "/none-*,online"}
	j.master(flags...)
	j.server()
	j.awaitStatus("an empty dataset", func(s *pb.StatusReply) bool { return len(s.Datasets) == 1 })
	trainer := j.trainerOfMaster("a")
	j.says("clicks has "+fmt.Sprint(2*perFile)+" tasks", "dataset", "append", "clicks", paths[0], paths[1])
	j.awaitStatus("trained tasks", func(s *pb.StatusReply) bool { return s.Datasets[0].Done > 3 })
	cut, _ := j.awaitSet(1, 0)
	j.awaitSet(1, cut.Number+1) // its cut is after these tasks
	file := filepath.Join(j.dir, "job.tms")
	run(t, j.dir, j.in("snapshot", "save", file, "--checkpoint-dir", j.checkpoints())...).wants(t, 0)
	j.says("clicks has "+fmt.Sprint(3*perFile)+" tasks", "dataset", "append", "clicks", paths[2])

	again := j.another()
	run(t, again.dir, again.in("snapshot", "restore", file, "--checkpoint-dir", again.checkpoints())...).wants(t, 0)
	again.master(flags...)
	again.server()
	restored := again.awaitStatus("a restored dataset", func(s *pb.StatusReply) bool { return len(s.Datasets) == 1 }).Datasets[0]
	if restored.Tasks != 2*perFile || !restored.Online || restored.Closed || restored.Pass != 1 || restored.Done < 4 {
		t.Errorf("restored: found %v, expected the state before the third file", restored)
	}
	second := again.trainerOfMaster("b")
	again.says("clicks has "+fmt.Sprint(4*perFile)+" tasks", "dataset", "append", "clicks", paths[0], paths[3], paths[2])
	again.says("clicks is closed with "+fmt.Sprint(4*perFile)+" tasks", "dataset", "close", "clicks")
	second.wantExit(0)
	again.wantPasses(2)
	j.says("clicks is closed with "+fmt.Sprint(3*perFile)+" tasks", "dataset", "close", "clicks")
	trainer.wantExit(0)
	j.wantPasses(2)
}
