package e2e

import (
	"os"
	"slices"
	"strings"
	"testing"

	"trainmaster/ledger"
	"trainmaster/master/mastertest"
	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/taskqueue"
)

// dispatched returns the datasets of the dispatched tasks, in their order.
func (j *job) dispatched() (sets []int) {
	j.t.Helper()
	state, _, _ := mastertest.State(j.t, j.store)
	reader, err := ledger.Open(j.t.Context(), j.store, j.name, "")
	if err != nil {
		j.t.Fatal(err)
	}
	for entry, err := range reader.Entries(j.t.Context(), state.Commit) {
		if err != nil {
			j.t.Fatal(err)
		}
		for ev, err := range taskqueue.LedgerEvents(entry.Events) {
			if err != nil {
				j.t.Fatal(err)
			}
			if ev.Kind == taskqueue.EventDispatched {
				sets = append(sets, ev.Set)
			}
		}
	}
	return sets
}

// trainerOfMaster starts a trainer without --data.
func (j *job) trainerOfMaster(id string, args ...string) *process {
	j.t.Helper()
	return start(j.t, id, j.dir, append(j.in("trainer", "--id", id, "--journal", j.journal(), "--save-model", j.model(), "--record-delay", "1ms"), args...)...)
}

// wantPasses fails the test unless `master verify` finds each task of the passes of each dataset counted once.
func (j *job) wantPasses(passes ...int) {
	j.t.Helper()
	o := run(j.t, j.dir, j.in("verify", "-o", "json")...)
	o.wants(j.t, 0)
	var reports []taskqueue.PassReport
	o.decode(j.t, &reports)
	found := make([]int, len(passes))
	for _, r := range reports {
		if r.CountedOnce != r.Tasks || r.Missing+r.CountedTwice+r.SetAside > 0 {
			j.t.Errorf("dataset %d, pass %d: found %+v", r.Set, r.Pass, r)
		}
		if r.Set < len(found) {
			found[r.Set]++
		}
	}
	if !slices.Equal(found, passes) {
		j.t.Errorf("passes of the datasets: expected %v, found %v", passes, found)
	}
}

// F240: a master registers two datasets with weights. It is killed, and continues with the same flags only. Each pass is complete.
func TestWeightedDatasetsOfTheMaster(t *testing.T) {
	t.Parallel()
	const half = tasksPerPass / 2
	j := newJob(t)
	paths := j.data.Train.Paths
	flags := func(books, news, weight string) []string {
		return []string{"--ps", "1", "--passes", "3", "--dataset", "books=" + paths[0] + ",weight=0.75", "--dataset", "books=" + books, "--dataset", "news=" + news + ",passes=2,weight=" + weight, "--dataset", "news=" + paths[3]}
	}
	same := flags(paths[1], paths[2], "0.25")
	master := j.master(same...)
	j.server()
	j.awaitStatus("two datasets", func(s *pb.StatusReply) bool { return len(s.Datasets) == 2 })
	refused := j.trainer("with-data")
	refused.wantExit(exitFailed)
	refused.awaitLog("the master registers the datasets of this job (books, news): start trainers without --data")
	a, b := j.trainerOfMaster("a"), j.trainerOfMaster("b")
	term := j.awaitLeader(0)
	j.awaitStatus("40 tasks of both", func(s *pb.StatusReply) bool {
		return s.Datasets[0].Cursor+s.Datasets[1].Cursor >= 40 || s.Datasets[0].Pass > 1
	})
	master.kill()
	for _, other := range []struct {
		flags []string
		words string
	}{
		{flags(paths[1], paths[2], "0.5"), `datasets was "books weight 75, news weight 25 passes 2" at the beginning and is "books weight 75, news weight 50 passes 2" here`},
		{same[:4], `and is "of trainers" here`},
		{flags(paths[2], paths[1], "0.25"), "--dataset books: another dataset was reported first: "},
	} {
		m := j.master(other.flags...)
		m.wantExit(exitUsage)
		if !strings.Contains(m.log(), other.words) {
			t.Errorf("expected %q, found %s", other.words, m.log())
		}
	}
	master = j.master(same...)
	j.awaitLeader(term)
	j.says("the weight of news is 75", "job", "set", "weight.news=75")
	j.says("0        75      books\n1        75      news\n", "status")
	a.wantExit(0)
	b.wantExit(0)
	master.wantExit(0)
	j.wantPasses(3, 2)
	sets := j.dispatched()
	of := map[int]int{}
	for _, set := range sets[:40] {
		of[set]++
	}
	if of[0] < 29 || of[0] > 31 || of[0]+of[1] != 40 {
		t.Errorf("the first 40 dispatched tasks: expected 30 of dataset 0 and 10 of dataset 1, found %v", of)
	}
	if half*3+half*2 > len(sets) {
		t.Errorf("%d tasks were dispatched, expected at least %d", len(sets), half*5)
	}
	j.wantAccuracy(0.85)
}

// F240, F242: a synchronous job with two datasets and shuffled records loses a server and rolls back. Each record of each dataset is in one committed step.
func TestWeightedDatasetsRollBack(t *testing.T) {
	t.Parallel()
	j := newJob(t)
	paths := j.data.Train.Paths
	m := j.master("--passes", "2", "--ps", "2", "--update-mode", "sync", "--checkpoint-every", "500ms",
		"--dataset", "a="+paths[0]+",weight=3", "--dataset", "b="+paths[1], "--dataset", "b="+paths[2], "--dataset", "b="+paths[3], "--evaluation-data", j.data.Test.Paths[0])
	servers := []*process{j.server(shortLease...), j.server(shortLease...)}
	trainers := []*process{j.trainerOfMaster("x", "--shuffle-records"), j.trainerOfMaster("y", "--shuffle-records=1")}
	j.awaitSet(2, 0)
	j.awaitSteps(20)
	servers[1].kill()
	j.server(shortLease...)
	for _, p := range trainers {
		p.wantExit(0)
	}
	m.wantExit(0)
	j.wantPasses(2, 2)
}

// A dataset of the master whose files are missing or damaged ends the master before anything is stored.
func TestUnreadableDatasetEndsTheMaster(t *testing.T) {
	t.Parallel()
	j := newJob(t)
	m := j.master("--ps", "1", "--dataset", "a="+j.dir+"/missing-*")
	m.wantExit(exitUsage)
	if !strings.Contains(m.log(), "--dataset a: ") || !strings.Contains(m.log(), "the glob matches no file") {
		t.Errorf("found %s", m.log())
	}
	m = j.master("--ps", "1", "--dataset", "a="+j.data.Train.Paths[0]+",weight=0")
	m.wantExit(exitUsage)
	m = j.master("--ps", "1", "--dataset", "a="+j.data.Train.Paths[0]) // nothing of the refused flags is stored
	j.server()
	j.trainerOfMaster("x").wantExit(0)
	m.wantExit(0)
	j.wantPasses(1)
}

// A trainer without --data takes its first task before it knows the data. If the records of the task cannot be read, it trains the other
// tasks. If its model does not fit, it ends, and the task is trained by another trainer.
func TestFirstTaskOfATrainerWithoutData(t *testing.T) {
	t.Parallel()
	const perFile = tasksPerPass / shards
	j := newJob(t)
	paths := j.data.Train.Paths
	m := j.master("--ps", "1", "--shuffle=false", "--dataset", "a="+paths[0], "--dataset", "a="+paths[1])
	j.server()
	j.awaitStatus("a dataset", func(s *pb.StatusReply) bool { return len(s.Datasets) == 1 })
	other := j.trainerOfMaster("other", "--model", "fm")
	other.wantExit(exitFailed)
	if !strings.Contains(other.log(), "first record of a task in ") {
		t.Errorf("found %s", other.log())
	}
	content, err := os.ReadFile(paths[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(paths[0], append(content, 0), 0o600); err != nil {
		t.Fatal(err)
	}
	x := j.trainerOfMaster("x")
	x.wantExit(0)
	if !strings.Contains(x.log(), "task failed") {
		t.Error("the trainer failed no task, expected the tasks of the changed file")
	}
	m.wantExit(4) // tasks are set aside
	status := run(t, j.dir, j.in("verify", "-o", "json")...)
	var reports []taskqueue.PassReport
	status.decode(t, &reports)
	if len(reports) != 1 || reports[0].CountedOnce != perFile || reports[0].SetAside != perFile {
		t.Errorf("found %+v, expected %d tasks counted and as many set aside", reports, perFile)
	}
}
