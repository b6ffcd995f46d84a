package taskqueue

import (
	"maps"
	"slices"
	"time"
)

func (s *set) sortedAside() []*asideTask {
	return slices.SortedFunc(maps.Values(s.aside), func(a, b *asideTask) int { return a.index - b.index })
}

// Overview is a summary of the job for operators.
type Overview struct {
	Job      string
	Status   Status
	Reason   string
	Epoch    uint32
	Commit   uint64
	Clock    Clock
	Sets     []SetOverview
	Trainers []TrainerOverview

	Explicit bool      // commits; then
	Steps    StepPlace // is where they stand

	LearningRate RateChange // number 0: as the servers have it

	Strategy   *StrategyOverview   // nil: the job has none
	Population *PopulationOverview // nil: the job has none
}

// SetOverview is a summary of one dataset. Todo, Pending, Retry, Uncommitted, Done and SetAside
// are of the oldest open pass and add up to Tasks.
type SetOverview struct {
	Name          string
	Kind          Kind
	Weight        int // among the datasets of the kind
	Digest        [32]byte
	Tasks         int
	Chunks        int
	Records       int64
	ChunksPerTask int
	Online        bool
	Closed        bool // no tasks are added
	Pass          Pass
	Passes        int // 0: unlimited
	Cursor        int
	Todo          int
	Pending       int
	Retry         int
	Done          int
	SetAside      int
	Uncommitted   int // finished and not committed; of the oldest open pass, too
	AverageTask   time.Duration
	Timeout       time.Duration
}

// TrainerOverview is a summary of one trainer.
type TrainerOverview struct {
	ID          string
	Ordinal     Ordinal
	Incarnation uint64
	Address     string
	Joined      bool // false: a plain connection
	Draining    bool
	Lost        bool // its session has ended, and its tasks wait for a commit or a rollback
	Silent      time.Duration
	Tasks       []int // indices of the tasks that it holds
	Progress    Progress
}

// Overview costs O(pending + trainers).
func (q *Queue) Overview() Overview {
	o := Overview{Job: q.job, Status: q.status, Reason: q.reason, Epoch: q.epoch, Commit: q.commit, Clock: q.clock, LearningRate: q.LearningRate()}
	if q.explicit != nil {
		o.Explicit, o.Steps = true, q.stepPlace()
	}
	if q.steering != nil {
		o.Strategy = new(q.steering.Overview())
	}
	if q.population != nil {
		o.Population = new(q.population.Overview())
	}
	for _, s := range q.sets {
		o.Sets = append(o.Sets, q.setOverview(s))
	}
	for _, t := range q.sortedTrainers() {
		v := TrainerOverview{
			ID: t.id, Ordinal: t.ordinal, Incarnation: t.incarnation, Address: t.address, Joined: !t.plain, Draining: t.draining, Lost: t.gone,
			Silent: q.clock.Sub(t.seen), Progress: t.progress,
		}
		for _, e := range t.holds {
			v.Tasks = append(v.Tasks, e.set.orderOf(e.pass).index(e.position))
		}
		o.Trainers = append(o.Trainers, v)
	}
	return o
}

func (q *Queue) setOverview(s *set) SetOverview {
	v := SetOverview{
		Name: s.name, Kind: s.kind, Weight: s.weight, Digest: s.digest, Tasks: s.tasks, Chunks: s.chunks, ChunksPerTask: s.chunksPerTask, Online: s.online, Closed: s.closed,
		Pass: s.pass, Passes: int(q.passes(s)), Cursor: s.cursor,
		AverageTask: time.Duration(s.average) * time.Microsecond, Timeout: q.timeout(s),
	}
	if s.table != nil {
		v.Records = s.table.Records()
	}
	oldest := openPass{pass: s.pass}
	if len(s.open) > 0 {
		oldest = s.open[0]
	}
	for _, a := range s.aside {
		if a.missing(oldest.pass) {
			v.SetAside++
		}
	}
	if len(s.open) == 0 {
		v.Done = s.tasks - v.SetAside
		return v
	}
	v.Pass, v.Cursor, v.Done = oldest.pass, s.dispatched(oldest.pass), oldest.counted
	for _, e := range s.byKey {
		switch {
		case e.pass != oldest.pass:
		case e.holderCount > 0:
			v.Pending++
		default:
			v.Retry++
		}
	}
	v.Uncommitted = oldest.uncommitted
	v.Todo = s.tasks - v.Done - v.Uncommitted - v.Pending - v.Retry - v.SetAside
	return v
}

// PendingTask is a task that is dispatched or waits to be dispatched again.
type PendingTask struct {
	Set      int
	Index    int
	Token    Token // Attempt is the attempt of the last dispatch
	Failures int
	Losses   int
	Holders  []TaskHolder
}

// TaskHolder is one trainer with a task.
type TaskHolder struct {
	Trainer    string
	Attempt    Attempt
	Age        time.Duration
	Prefetched bool
}

// PendingTasks lists the live tasks in (pass, position) order.
func (q *Queue) PendingTasks() []PendingTask {
	var tasks []PendingTask
	for _, s := range q.sets {
		s.compact()
		for _, e := range s.live {
			t := PendingTask{Set: s.id, Index: s.orderOf(e.pass).index(e.position), Token: q.token(e, e.next-1), Failures: e.failures, Losses: e.losses}
			for _, h := range e.holders[:e.holderCount] {
				v := TaskHolder{Trainer: h.trainer.id, Attempt: h.attempt, Prefetched: h.start == 0}
				if h.start != 0 {
					v.Age = q.clock.Sub(h.start)
				}
				t.Holders = append(t.Holders, v)
			}
			tasks = append(tasks, t)
		}
	}
	return tasks
}

// Dropped reports whether a set-aside task was dropped.
func (q *Queue) Dropped(set, index int) bool {
	a := q.sets[set].aside[index]
	return a != nil && a.dropped
}

// SetAsideTasks lists the tasks of a dataset that are set aside, by index.
func (q *Queue) SetAsideTasks(set int) []int {
	var list []int
	for _, a := range q.sets[set].sortedAside() {
		list = append(list, a.index)
	}
	return list
}

// TaskQueues builds the literal queues of the oldest open pass of a dataset (of the last pass if none is open), in the order
// of the pass. Set-aside tasks are in none of them; tasks that wait for a commit are pending.
func (q *Queue) TaskQueues(set int) TaskQueues {
	s := q.sets[set]
	view := TaskQueues{Pending: map[int]TaskEntry{}}
	if s.pass == 0 {
		return view
	}
	pass := s.pass
	if len(s.open) > 0 {
		pass = s.open[0].pass
	}
	o := newOrder(s.algorithm, s.seed, pass, s.tasks)
	for position := range s.tasks {
		index := o.index(position)
		task := Task{Index: index, Token: Token{Epoch: q.epoch, Kind: s.kind, Dataset: set, Pass: pass, Position: position}}
		if s.table != nil {
			task.Chunks = s.table.TaskChunks(index)
		}
		e := s.byKey[liveKey{pass, position}]
		switch {
		case e != nil && e.holderCount > 0:
			task.Token.Attempt = e.next - 1
			view.Pending[index] = TaskEntry{NumTimeout: e.failures, Task: task}
		case e != nil:
			task.Token.Attempt = e.next - 1
			view.Todo = append(view.Todo, TaskEntry{NumTimeout: e.failures, Task: task})
		case s.uncommittedAt(liveKey{pass, position}) != nil:
			task.Token.Attempt = s.uncommittedAt(liveKey{pass, position}).next - 1
			view.Pending[index] = TaskEntry{Task: task}
		case s.aside[index].missing(pass):
		case position >= s.dispatched(pass):
			view.Todo = append(view.Todo, TaskEntry{Task: task})
		default:
			view.Done = append(view.Done, TaskEntry{Task: task})
		}
	}
	return view
}
