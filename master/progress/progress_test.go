package progress_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"trainmaster/etcdstore/etcdtest"
	"trainmaster/master"
	"trainmaster/master/component"
	"trainmaster/master/evaluation"
	"trainmaster/master/mastertest"
	"trainmaster/master/progress"
	"trainmaster/taskqueue"
)

func TestProgressCountsTheTasksOfAllPasses(t *testing.T) {
	o := &taskqueue.Overview{Status: taskqueue.Running, Sets: []taskqueue.SetOverview{
		{Kind: taskqueue.Evaluation, Tasks: 5, Pass: 9},
		{Kind: taskqueue.Training, Tasks: 10, Pass: 3, Done: 4, SetAside: 1},
		{Kind: taskqueue.Training, Tasks: 2, Pass: 1},
	}}
	p, err := progress.Of(o, 4, "accuracy", nil)
	if err != nil || p.Pass != 3 || p.Done != 25 || p.Tasks != 48 || p.Status != "running" || p.Value != nil {
		t.Errorf("found %+v, %v", p, err)
	}
	if p, _ := progress.Of(o, 0, "", nil); p.Tasks != 0 || p.Done != 25 {
		t.Errorf("without a limit of passes: found %+v", p)
	}
	o.Sets[1].Online = true
	if p, _ := progress.Of(o, 4, "", nil); p.Tasks != 0 {
		t.Errorf("of an open dataset: found %+v", p)
	}
}

func TestProgressHasTheNewestFigureOfTheJob(t *testing.T) {
	score := func(v float64) *float64 { return &v }
	state := evaluation.State{History: []evaluation.Round{
		{Number: 1, Model: "a", Begin: 1, End: 2, Score: score(0.5)}, {Number: 2, Model: "b", Begin: 2, End: 3, Score: score(0.75)},
		{Number: 3, Trainer: "t", Begin: 3, End: 4}, {Number: 4, Model: "c", Begin: 4, End: 5},
	}, Rounds: 4}
	p, err := progress.Of(&taskqueue.Overview{}, 1, "accuracy", state.Encode())
	if err != nil || p.Figure != "accuracy" || p.Value == nil || *p.Value != 0.75 {
		t.Errorf("found %+v, %v", p, err)
	}
	if _, err := progress.Of(&taskqueue.Overview{}, 1, "accuracy", []byte("{")); err == nil {
		t.Error("damaged state: expected an error")
	}
}

func TestDecodeNamesTheAnnotation(t *testing.T) {
	p := progress.Progress{Format: 1, Status: "running", Pass: 2}
	if found, err := progress.Decode(p.Encode()); err != nil || found != p {
		t.Errorf("found %+v, %v", found, err)
	}
	for text, want := range map[string]string{"{": "expected JSON", `{"format":2}`: "expected format 1, found 2"} {
		if _, err := progress.Decode(text); err == nil || !strings.Contains(err.Error(), progress.Annotation) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: found %v", text, err)
		}
	}
}

// owner takes annotations. The package kubernetes is tested with the API, and e2e/k8s with a real cluster.
type owner struct {
	mu      sync.Mutex
	down    error
	refused int
	list    []progress.Progress
	wanted  string // number of workers
}

func (o *owner) Annotate(_ context.Context, annotations map[string]string) (map[string]string, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.down != nil {
		o.refused++
		return nil, o.down
	}
	p, err := progress.Decode(annotations[progress.Annotation])
	o.list = append(o.list, p)
	all := maps.Clone(annotations)
	if o.wanted != "" {
		all[progress.WorkersAnnotation] = o.wanted
	}
	return all, err
}

func (o *owner) last() (p progress.Progress, n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if n = len(o.list); n > 0 {
		p = o.list[n-1]
	}
	return p, n
}

func TestPublisherSurvivesAClusterThatRefuses(t *testing.T) {
	o := &owner{down: errors.New("forbidden")}
	quiet, _ := logtest.NewNullLogger()
	p := progress.New(progress.Config{Owner: o, Passes: 1, Every: 50 * time.Millisecond, Pods: func() (int, int, string) { return 3, 2, "1 of 2 ps pods run: no node" }, Log: logrus.NewEntry(quiet)})
	r := mastertest.Start(t, etcdtest.Store(t), master.Config{Components: []component.Component{p}})
	r.Register(4)
	trainer := r.Join("t")
	trainer.Take(t)
	o.mu.Lock()
	o.down = nil
	o.mu.Unlock()
	mastertest.Eventually(t, "the progress", func() bool {
		last, _ := o.last()
		return last.Waiting == "1 of 2 ps pods run: no node" && last.Workers == 3 && last.Servers == 2 && last.Tasks == 4 && last.Status == "running"
	})
	if !r.Leading() {
		t.Error("expected the term to continue")
	}
}

// F320: the end is published although the term has ended, and is repeated.
func TestFinalProgressIsRepeatedUntilTheClusterTakesIt(t *testing.T) {
	o := &owner{down: errors.New("the API does not answer")}
	p := progress.New(progress.Config{Owner: o, Passes: 2})
	done := make(chan error, 1)
	go func() { done <- p.Final(context.Background(), &taskqueue.Overview{Status: taskqueue.Ended}, nil) }()
	mastertest.Eventually(t, "a refused attempt", func() bool { o.mu.Lock(); defer o.mu.Unlock(); return o.refused > 0 })
	o.mu.Lock()
	o.down = nil
	o.mu.Unlock()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if last, n := o.last(); n != 1 || last.Status != "ended" {
		t.Errorf("found %+v in %d annotations", last, n)
	}
}

// F321: the wanted number is applied when it changes, so that a number of master scale stays, and again after an error.
func TestWantedNumberOfWorkersIsAppliedOnce(t *testing.T) {
	quiet, _ := logtest.NewNullLogger()
	o := &owner{wanted: "4"}
	var mu sync.Mutex
	var calls []int
	running := 0
	p := progress.New(progress.Config{Owner: o, Passes: 1, Every: 50 * time.Millisecond, Log: logrus.NewEntry(quiet),
		Pods: func() (int, int, string) { mu.Lock(); defer mu.Unlock(); running++; return running, 0, "" }, // each publication has a change
		Scale: func(_ context.Context, n int) error {
			mu.Lock()
			defer mu.Unlock()
			calls = append(calls, n)
			if len(calls) == 1 {
				return errors.New("not stored")
			}
			return nil
		}})
	r := mastertest.Start(t, etcdtest.Store(t), master.Config{Components: []component.Component{p}})
	seen := func(n int, want ...int) {
		t.Helper()
		mastertest.Eventually(t, "publications", func() bool { _, found := o.last(); return found >= n })
		mu.Lock()
		defer mu.Unlock()
		if !slices.Equal(calls, want) {
			t.Errorf("after %d publications: expected %v, found %v", n, want, calls)
		}
	}
	seen(4, 4, 4)
	o.mu.Lock()
	o.wanted = "2"
	n := len(o.list)
	o.mu.Unlock()
	seen(n+2, 4, 4, 2)
	if !r.Leading() {
		t.Error("expected the term to continue")
	}
}
