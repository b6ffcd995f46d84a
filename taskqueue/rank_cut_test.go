package taskqueue

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// rankJob is a synchronous job of ranks whose leader takes cuts and rolls the job back.
type rankJob struct {
	*testing.T
	queue  *Queue
	random *rand.Rand
	crew   []*cutRunner
	made   []string // steps of this epoch

	cut       uint64 // number of the cut under way, or 0
	released  bool
	version   int // of the cut
	committed int // the version of the last committed cut
	names     int

	cuts, rollbacks, interrupted int
}

// cutRunner is a trainer in a rankJob. Each mini-batch has one record.
type cutRunner struct {
	session Answer
	joined  bool
	epoch   uint32
	seq     uint64
	step    uint64 // step of its next record
	task    *Token
	base    int
	used    int
	size    int
	last    uint64 // step of the last record of the task
	staged  bool
	stopped bool // it flushed the cut
}

func (j *rankJob) must(a Answer) Answer {
	j.Helper()
	if a.Err != nil {
		j.Fatal(a.Err)
	}
	return a
}

// act runs the next action of a trainer.
func (j *rankJob) act(r *cutRunner) {
	q := j.queue
	if r.joined && (r.epoch != q.epoch || q.known(r.session.Ordinal, r.session.Incarnation) == nil) {
		*r = cutRunner{}
	}
	switch {
	case !r.joined:
		j.names++
		*r = cutRunner{session: j.must(q.Apply(1, &Join{ID: fmt.Sprint(j.names)})), joined: true, epoch: q.epoch}
		fallthrough
	case r.step == 0:
		if a := j.must(q.Apply(1, &LastStep{Trainer: r.session.Ordinal, Incarnation: r.session.Incarnation, Epoch: r.epoch})); a.Kind == AnswerStep {
			r.step = max(a.Place.Step, a.Place.Round) + 1
		}
	case r.stopped && !q.holdsMembers():
		r.stopped = false
	case r.stopped:
	case q.isStopping(r.session.Ordinal):
		if r.staged {
			j.interrupted++
		}
		j.flush(r)
	case r.task == nil || r.used == r.size:
		j.ask(r, true)
	default:
		r.staged = true
	}
}

func (j *rankJob) ask(r *cutRunner, wants bool) {
	var results []Result
	if r.task != nil {
		results = []Result{{Token: *r.task, Step: max(r.last, 1)}}
	}
	r.seq++
	a := j.must(j.queue.Apply(1, &Request{Trainer: r.session.Ordinal, Incarnation: r.session.Incarnation, Seq: r.seq, Ack: r.seq, Finished: results, Want: wants, Epoch: r.epoch}))
	r.task = nil
	if a.Kind == AnswerTask {
		r.task, r.base, r.used, r.size, r.last = &a.Token, int(a.Base), int(a.Base), 1+(a.Index*7)%5, 0
	}
}

// flush stops a trainer for the cut, also a trainer that has staged: no step completes before the release.
func (j *rankJob) flush(r *cutRunner) {
	if r.task != nil && r.used == r.size {
		j.ask(r, false)
	}
	var positions []TaskPosition
	if r.task != nil && r.used > r.base {
		positions = []TaskPosition{{Token: *r.task, Records: int64(r.used)}}
	}
	j.must(j.queue.Apply(1, &StepFlushed{Trainer: r.session.Ordinal, Incarnation: r.session.Incarnation, Generation: j.queue.explicit.generation, Step: j.queue.explicit.round, Positions: positions}))
	r.stopped, r.step = true, j.queue.explicit.round+1
}

// lead runs the next action of the leader.
func (j *rankJob) lead() {
	q := j.queue
	switch due := q.StepsDue(); {
	case due.Rollback:
		if due.Release {
			j.must(q.Apply(1, &CutRelease{}))
		}
		place := q.Steps()
		j.must(q.Apply(1, &Rollback{Generation: place.Generation + 1, Step: place.Step}))
		j.made, j.cut, j.released = j.made[:j.committed], 0, false
		j.rollbacks++
	case j.cut == 0 && due.Release: // a cut of the previous leader
		j.must(q.Apply(1, &CutRelease{}))
	case j.cut == 0 && (due.Commit || j.random.IntN(8) == 0):
		place := q.Steps()
		j.cut, j.released = max(place.Step, place.Round)+1, false
		j.must(q.Apply(1, &CutBegin{Step: j.cut}))
	case j.cut == 0:
	case j.random.IntN(20) == 0: // the next leader
		j.cut = 0
	case !j.released:
		if a := j.must(q.Apply(1, &CutReady{Step: j.cut})); a.Kind == AnswerStep {
			j.version, j.released = len(j.made), true
			j.must(q.Apply(1, &CutRelease{}))
		}
	default:
		if a := q.Apply(1, &StepCommit{Generation: q.explicit.generation, Step: j.cut}); a.Kind == AnswerStep {
			j.committed = j.version
			j.cuts++
		}
		j.cut = 0
	}
}

// makeStep completes a step if all required trainers have staged.
func (j *rankJob) makeStep() {
	list, ok := j.queue.Contributors()
	if !ok || len(list) == 0 {
		return
	}
	var parts []string
	var of []*cutRunner
	for _, o := range list {
		i := slices.IndexFunc(j.crew, func(r *cutRunner) bool { return r.joined && r.session.Ordinal == o })
		if i < 0 || !j.crew[i].staged || j.queue.known(o, j.crew[i].session.Incarnation) == nil {
			return
		}
		r := j.crew[i]
		parts, of = append(parts, fmt.Sprintf("%d/%d.%d", r.task.Pass, r.task.Position, r.used)), append(of, r)
	}
	for _, r := range of {
		r.staged, r.last = false, r.step
		r.used++
	}
	j.made = append(j.made, strings.Join(parts, " "))
}

// Cuts, rollbacks and lost trainers change no step of a job of ranks, at any time. Each step up to the last cut
// equals the step of the same job without them.
func TestRanksWithCutsMakeTheSameSteps(t *testing.T) {
	cuts, rollbacks, interrupted := 0, 0, 0
	for _, trainers := range []int{1, 2, 3, 5} {
		for _, tasks := range []int{4, 7, 20} {
			var want []string
			for seed := range uint64(20) {
				q, _ := runningQueue(t, Options{Passes: 3, Ranks: trainers, ExplicitCommit: true, Cuts: true}, tasks)
				j := &rankJob{T: t, queue: q, random: rand.New(rand.NewPCG(3, seed)), crew: make([]*cutRunner, trainers+1)}
				for i := range j.crew {
					j.crew[i] = &cutRunner{} // one trainer is spare
				}
				for turn := 0; ; turn++ {
					if status, _ := q.Status(); status == Ended {
						break
					}
					if turn > 2000*tasks*trainers {
						t.Fatalf("%d trainers, %d tasks, seed %d: no progress after %d steps: %+v", trainers, tasks, seed, len(j.made), q.PendingTasks())
					}
					r := j.crew[j.random.IntN(len(j.crew))]
					switch n := j.random.IntN(1000); {
					case n < 4 && seed > 0 && r.joined:
						q.Apply(1, &Leave{r.session.Ordinal, r.session.Incarnation})
						*r = cutRunner{}
					case n < 200 && (seed > 0 || n < 20):
						j.lead()
					default:
						j.act(r)
						j.makeStep()
					}
					if turn%50 == 0 {
						q.Apply(1, &Tick{})
						q.Ready()
					}
				}
				cuts, rollbacks, interrupted = cuts+j.cuts, rollbacks+j.rollbacks, interrupted+j.interrupted
				if want == nil {
					want = j.made
				}
				if !slices.Equal(j.made, want) {
					at := 0
					for at < min(len(j.made), len(want)) && j.made[at] == want[at] {
						at++
					}
					t.Fatalf("%d trainers, %d tasks, seed %d: step %d differs:\n%q\n%q", trainers, tasks, seed, at, j.made[at:min(at+2, len(j.made))], want[at:min(at+2, len(want))])
				}
			}
		}
	}
	t.Logf("%d cuts, %d rollbacks, %d trainers stopped while they waited for a step", cuts, rollbacks, interrupted)
	if cuts < 1000 || rollbacks < 200 || interrupted < 1000 {
		t.Error("expected more cuts, rollbacks and interrupted waits")
	}
}

// No task is dispatched before all ranks have joined, also after a rollback.
func TestRanksWithCutsDispatchOnceAllHaveJoined(t *testing.T) {
	q, _ := runningQueue(t, Options{Ranks: 2, ExplicitCommit: true, Cuts: true}, 4)
	j := &rankJob{T: t, queue: q}
	join := func() *cutRunner {
		r := &cutRunner{}
		j.act(r)
		return r
	}
	for epoch := range uint64(2) {
		a := join()
		if j.ask(a, true); a.task != nil {
			t.Fatalf("epoch %d: one of two trainers got %v", epoch, a.task)
		}
		b := join()
		j.ask(b, true)
		if j.ask(a, true); a.task == nil || a.task.Position != 0 {
			t.Fatalf("epoch %d: the first of two trainers got %v, expected position 0", epoch, a.task)
		}
		if j.ask(b, true); b.task == nil || b.task.Position != 1 {
			t.Fatalf("epoch %d: the second of two trainers got %v, expected position 1", epoch, b.task)
		}
		j.must(q.Apply(1, &Rollback{Generation: epoch + 1}))
	}
}
