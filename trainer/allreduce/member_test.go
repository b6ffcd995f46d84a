package allreduce

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"go.uber.org/goleak"

	"trainmaster/pserver/floats"
	"trainmaster/taskqueue"
	"trainmaster/trainer/ring"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// within returns a context that bounds the time of a test: members that disagree form generations without end.
func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeoutCause(t.Context(), 10*time.Minute, errors.New("the test took more than ten minutes"))
	t.Cleanup(cancel)
	return ctx
}

func quiet() *logrus.Entry {
	l := logrus.New()
	l.SetOutput(io.Discard)
	return logrus.NewEntry(l)
}

// counts is a model with one parameter for each record: how often the record was added.
type counts struct {
	settings string
	added    []float32
	weighted []float32     // a second vector, as the state of an optimizer
	slow     time.Duration // of Apply
	mu       sync.Mutex
}

func newCounts(records int) *counts {
	return &counts{settings: "counts", added: make([]float32, records), weighted: make([]float32, 1)}
}
func (c *counts) Settings() string     { return c.settings }
func (c *counts) Vectors() [][]float32 { return [][]float32{c.added, c.weighted} }
func (c *counts) Length() int          { return len(c.added) }
func (c *counts) Apply(_ uint64, sum []float32, records int64, _ float64) error {
	time.Sleep(c.slow) // so that other members have the sum before
	for i, v := range sum {
		c.added[i] += v
	}
	c.weighted[0] += float32(records)
	return nil
}

// queue is the master: it dispatches tasks of some records.
type queue struct {
	mu       sync.Mutex
	tasks    int
	perTask  int
	waiting  []taskqueue.Token
	left     int // tasks that are not finished
	hold     int // last tasks that are not dispatched
	finished map[int]int
	attempts map[int]taskqueue.Attempt
	ended    chan struct{}
}

func newQueue(tasks, perTask int) *queue {
	q := &queue{tasks: tasks, perTask: perTask, left: tasks, finished: map[int]int{}, attempts: map[int]taskqueue.Attempt{}, ended: make(chan struct{})}
	for i := range tasks {
		q.waiting = append(q.waiting, token(1, i))
	}
	return q
}

func (q *queue) take() (t taskqueue.Token, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) <= q.hold {
		return t, false
	}
	t, q.waiting = q.waiting[0], q.waiting[1:]
	q.attempts[t.Position]++
	t.Attempt = q.attempts[t.Position]
	return t, true
}

// done returns the number of finished tasks.
func (q *queue) done() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.tasks - q.left
}

// release dispatches the last tasks, too.
func (q *queue) release() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.hold = 0
}

// again returns a task to the queue: its trainer was lost, or is slow.
func (q *queue) again(t taskqueue.Token) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.finished[t.Position] == 0 {
		q.waiting = append(q.waiting, t)
	}
}

// finish counts a task, of the newest attempt only.
func (q *queue) finish(t taskqueue.Token) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if t.Attempt != q.attempts[t.Position] || slices.ContainsFunc(q.waiting, func(w taskqueue.Token) bool { return sameTask(w, t) }) {
		return
	}
	q.finished[t.Position]++
	if q.left--; q.left == 0 {
		close(q.ended)
	}
}

// worker is the work of a member.
type worker struct {
	queue    *queue
	name     string
	batch    int
	task     *taskqueue.Token
	current  Batch
	onFinish func(taskqueue.Token) // may be nil: called before the finish is counted
	onNext   func(Batch)           // may be nil
	returned atomic.Int32          // tasks
}

func (w *worker) Next(ctx context.Context, wait time.Duration, used func(taskqueue.Token) (int64, bool)) (Batch, error) {
	if ctx.Err() != nil {
		return Batch{}, context.Cause(ctx)
	}
	if w.task == nil {
		if t, ok := w.queue.take(); ok {
			w.task = &t
		}
	}
	if w.task == nil {
		select {
		case <-w.queue.ended:
			return Batch{}, io.EOF
		case <-time.After(wait): // as a member without a task
		}
		return Batch{}, nil
	}
	records, whole := used(*w.task)
	w.current = Batch{Token: *w.task, From: records, Last: true}
	if !whole {
		w.current.Records = min(w.batch, w.queue.perTask-int(records))
		w.current.Last = int(records)+w.current.Records == w.queue.perTask
	}
	if w.onNext != nil {
		w.onNext(w.current)
	}
	return w.current, nil
}

func (w *worker) Gradient(_ context.Context, sum []float32) error {
	clear(sum)
	for i := range w.current.Records {
		sum[w.task.Position*w.queue.perTask+int(w.current.From)+i]++
	}
	return nil
}
func (w *worker) Applied() {}
func (w *worker) Finished(context.Context) error {
	if w.task == nil { // it was returned
		return nil
	}
	if w.onFinish != nil {
		w.onFinish(*w.task)
	}
	w.queue.finish(*w.task)
	w.task = nil
	return nil
}
func (w *worker) Release() {
	if w.task != nil {
		w.returned.Add(1)
		w.queue.again(*w.task)
		w.task = nil
	}
}
func (w *worker) Ended() <-chan struct{} { return w.queue.ended }

// meeting is a rendezvous in memory. After a failure, a generation without the members that were killed follows.
type meeting struct {
	mu      sync.Mutex
	current ring.Membership // without a rank
	changed chan struct{}
	dead    map[string]bool // members that were killed
}

func newMeeting() *meeting { return &meeting{changed: make(chan struct{}), dead: map[string]bool{}} }

func (m *meeting) killed(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dead[id] = true
}

func (m *meeting) change(do func([]ring.Member) []ring.Member) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.current.Members = do(slices.Clone(m.current.Members))
	m.current.Generation++
	close(m.changed)
	m.changed = make(chan struct{})
}

func (m *meeting) join(members ...ring.Member) {
	m.change(func(list []ring.Member) []ring.Member { return append(list, members...) })
}

func (m *meeting) leave(id string) {
	m.change(func(list []ring.Member) []ring.Member {
		return slices.DeleteFunc(list, func(o ring.Member) bool { return o.ID == id })
	})
}

type seat struct {
	*meeting
	id string
}

func (s seat) Next(ctx context.Context, after uint64, parked func()) (ring.Membership, error) {
	return s.next(ctx, func(m ring.Membership) bool {
		if m.Rank < 0 {
			parked()
		}
		return m.Generation > after && m.Rank >= 0
	})
}

// next waits for a membership.
func (s seat) next(ctx context.Context, wanted func(ring.Membership) bool) (ring.Membership, error) {
	for {
		s.mu.Lock()
		m, changed := s.current, s.changed
		s.mu.Unlock()
		m.Rank = slices.IndexFunc(m.Members, func(o ring.Member) bool { return o.ID == s.id })
		if wanted(m) {
			return m, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return m, context.Cause(ctx)
		}
	}
}

func (s seat) Newest() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current.Generation
}

func (s seat) Superseded(ctx context.Context, generation uint64) {
	_, _ = s.next(ctx, func(m ring.Membership) bool { return m.Generation > generation })
}

func (s seat) Failed(_ context.Context, generation uint64, _, _ string) {
	if s.Newest() == generation {
		s.change(func(list []ring.Member) []ring.Member {
			return slices.DeleteFunc(list, func(o ring.Member) bool { return s.dead[o.ID] })
		})
	}
}

// process is a member that can be killed.
type process struct {
	*Member
	model  *counts
	work   *worker
	cancel context.CancelCauseFunc
	done   chan struct{}
	err    error
	ok     bool
}

var errKilled = errors.New("killed by the test")

func start(t *testing.T, m *meeting, q *queue, name string, batch int) *process {
	t.Helper()
	log := quiet()
	endpoint, err := ring.Listen("127.0.0.1:0", [16]byte{1}, ring.Config{Log: log, Silence: 2 * time.Second, Forming: 500 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	model := newCounts(q.tasks * q.perTask)
	p := &process{model: model, work: &worker{queue: q, name: name, batch: batch}, done: make(chan struct{})}
	p.Member = &Member{Model: model, Work: p.work, Rendezvous: seat{m, name}, Endpoint: endpoint, Log: log, Lock: &model.mu}
	m.join(ring.Member{ID: name, Address: endpoint.Addr().String()})
	return p
}

func (p *process) run(ctx context.Context) {
	ctx, p.cancel = context.WithCancelCause(ctx)
	go func() {
		defer close(p.done)
		p.ok, p.err = p.Member.Run(ctx)
		_ = p.Endpoint.Close()
	}()
}

// lost waits for the end of a killed member, and returns its task to the queue.
func (p *process) lost() {
	p.cancel(errKilled)
	<-p.done
	p.work.Release()
}

// checkOnce compares the model with the finished tasks: each record of each task is in it exactly once.
func checkOnce(t *testing.T, q *queue, survivors []*process) {
	t.Helper()
	for _, p := range survivors {
		if p.err != nil {
			t.Fatalf("%s: %v", p.work.name, p.err)
		}
		for i, v := range p.model.added {
			if v != 1 {
				t.Fatalf("%s: record %d of task %d: expected once, found %v", p.work.name, i%q.perTask, i/q.perTask, v)
			}
		}
		for other, v := range p.model.weighted {
			if first := survivors[0].model.weighted[other]; math.Float32bits(v) != math.Float32bits(first) || p.Version() != survivors[0].Version() {
				t.Errorf("%s: version %d and %v, expected %d and %v", p.work.name, p.Version(), v, survivors[0].Version(), first)
			}
		}
	}
	for at, n := range q.finished {
		if n != 1 {
			t.Errorf("task %d was counted %d times", at, n)
		}
	}
}

// Members train all tasks, and have the same model.
func TestMembersTrainAllTasks(t *testing.T) {
	for _, n := range []int{1, 2, 5} {
		m, q := newMeeting(), newQueue(17, 10)
		var members []*process
		for i := range n {
			members = append(members, start(t, m, q, fmt.Sprint("m", i), 4))
		}
		for _, p := range members {
			p.run(within(t))
		}
		for _, p := range members {
			<-p.done
			if !p.ok || p.tag.generation != m.current.Generation {
				t.Errorf("%s: expected a current model of generation %d, found %t, %+v", p.work.name, m.current.Generation, p.ok, p.tag)
			}
		}
		checkOnce(t, q, members)
	}
}

// Members are killed at any point of a step, others join, tasks are dispatched twice: each record of each finished task is in the model exactly once.
func TestEachRecordOnceAlthoughMembersAreKilled(t *testing.T) {
	const tasks, perTask, kills = 60, 25, 5
	for seed := range uint64(4) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 3))
			m, q := newMeeting(), newQueue(tasks, perTask)
			q.hold = 5 // the job ends after the last kill
			var members, survivors []*process
			begin := func() *process {
				p := start(t, m, q, fmt.Sprint("m", len(members)), 3+r.IntN(5))
				members = append(members, p)
				survivors = append(survivors, p)
				p.run(within(t))
				return p
			}
			for range 4 {
				begin()
			}
			// trained reports whether two members that live have a state: after the death of both, the steps would be lost.
			trained := func() bool {
				n := 0
				for _, p := range survivors {
					p.model.mu.Lock()
					if p.model.weighted[0] > 0 {
						n++
					}
					p.model.mu.Unlock()
				}
				return n >= 2
			}
			for kill := range kills {
				for !trained() || q.done() < kill*tasks/(2*kills) {
					time.Sleep(time.Millisecond) // polls
				}
				time.Sleep(time.Duration(r.IntN(4000)) * time.Microsecond) // so that the kill is at any point of a step
				victim := r.IntN(len(survivors))
				p := survivors[victim]
				survivors = slices.Delete(survivors, victim, victim+1)
				p.lost()
				m.killed(p.work.name)
				if r.IntN(2) == 0 {
					m.leave(p.work.name)
				} // else the others find out
				begin()
				if kill == 2 && r.IntN(2) == 0 { // a task whose trainer is slow is dispatched to another one, too
					q.again(token(1, r.IntN(tasks)))
				}
			}
			q.release()
			for _, p := range survivors {
				<-p.done
			}
			survivors = slices.DeleteFunc(survivors, func(p *process) bool { return !p.ok })
			if len(survivors) == 0 {
				t.Fatal("expected a member with the newest model")
			}
			checkOnce(t, q, survivors)
		})
	}
}

// When a member reports a task as finished, the other member has its records, although it is slower.
func TestFinishWaitsUntilAllMembersHaveTheStep(t *testing.T) {
	for round := range 10 {
		m, q := newMeeting(), newQueue(40, 10)
		a, b := start(t, m, q, "a", 10), start(t, m, q, "b", 10)
		b.model.slow = 2 * time.Millisecond
		finishes := 0
		a.work.onFinish = func(taskqueue.Token) {
			if finishes++; finishes == 3+round {
				b.model.mu.Lock()
				defer b.model.mu.Unlock()
				at := a.work.current.Token.Position * q.perTask
				if v := b.model.added[at]; v != 1 {
					t.Errorf("round %d: member b has record %d %v times, while a finish is reported", round, at, v)
				}
			}
		}
		a.run(within(t))
		b.run(within(t))
		<-a.done
		<-b.done
		checkOnce(t, q, []*process{a, b})
	}
}

// A member that joins late has the model, the state of the optimizer and the progress of the others.
func TestNewcomerReceivesState(t *testing.T) {
	m, q := newMeeting(), newQueue(60, 10)
	a := start(t, m, q, "a", 5)
	q.hold = 40 // until b has the state
	half := make(chan struct{})
	a.work.onFinish = func(taskqueue.Token) {
		if q.done() == 19 {
			close(half)
		}
	}
	a.run(within(t))
	<-half
	b := start(t, m, q, "b", 5)
	var once sync.Once
	b.Stepped = func(uint64) { once.Do(q.release) }
	b.run(within(t))
	<-a.done
	<-b.done
	checkOnce(t, q, []*process{a, b})
	if b.model.weighted[0] != 600 {
		t.Errorf("state of the optimizer: expected 600, found %v", b.model.weighted[0])
	}
	for at := range q.tasks {
		if _, whole := b.progress.Used(token(1, at)); !whole {
			t.Errorf("expected that the newcomer knows task %d as complete", at)
		}
	}
}

// A member with a newer step of an older generation does not replace the state of the members that continued without it.
func TestStateOfNewerGenerationWins(t *testing.T) {
	for _, c := range []struct{ less, more tag }{{tag{1, 9}, tag{2, 3}}, {tag{2, 3}, tag{2, 4}}, {tag{0, 0}, tag{1, 0}}} {
		if !c.less.less(c.more) || c.more.less(c.less) || c.more.less(c.more) {
			t.Errorf("%+v and %+v", c.less, c.more)
		}
	}
	m, q := newMeeting(), newQueue(10, 10)
	away, a := start(t, m, q, "away", 5), start(t, m, q, "a", 5)
	away.tag, a.tag = tag{1, 9}, tag{2, 3}
	away.model.weighted[0] = 1000
	away.run(within(t))
	a.run(within(t))
	<-away.done
	<-a.done
	checkOnce(t, q, []*process{away, a})
	if away.model.weighted[0] != 100 {
		t.Errorf("expected the state of the other member, found %v", away.model.weighted[0])
	}
}

// A member with other settings ends with an error that has both. The others continue.
func TestOtherSettingsEndTheNewcomer(t *testing.T) {
	m, q := newMeeting(), newQueue(30, 10)
	q.hold = 10 // until b has ended
	a := start(t, m, q, "a", 5)
	a.run(within(t))
	b := start(t, m, q, "b", 5)
	b.model.settings = "other"
	b.run(within(t))
	<-b.done
	m.leave("b")
	q.release()
	<-a.done
	var settings *SettingsError
	if !errors.As(b.err, &settings) {
		t.Errorf("expected an error of the settings, found %v", b.err)
	}
	checkOnce(t, q, []*process{a})
}

// The training of a job without tasks for some members ends for all at the same version.
func TestMoreMembersThanTasks(t *testing.T) {
	m, q := newMeeting(), newQueue(1, 25)
	var members []*process
	for i := range 4 {
		members = append(members, start(t, m, q, fmt.Sprint("m", i), 10))
	}
	for _, p := range members {
		p.run(within(t))
	}
	for _, p := range members {
		<-p.done
	}
	checkOnce(t, q, members)
	if v := members[0].Version(); v != 3 {
		t.Errorf("expected 3 steps, found %d", v)
	}
}

// F340: a member that waits for a slow member returns its task. The records of the step are in the model once, and the next holder of the task reports it.
func TestMemberThatWaitsReturnsItsTask(t *testing.T) {
	m, q := newMeeting(), newQueue(6, 10)
	fast, slow := start(t, m, q, "fast", 10), start(t, m, q, "slow", 10)
	fast.patience = 20 * time.Millisecond
	var once sync.Once
	slow.work.onNext = func(Batch) {
		once.Do(func() {
			for deadline := time.Now().Add(20 * time.Second); fast.work.returned.Load() == 0; {
				if time.Now().After(deadline) {
					t.Error("expected that the fast member returns its task")
					return
				}
				time.Sleep(time.Millisecond) // polls
			}
		})
	}
	fast.run(within(t))
	slow.run(within(t))
	<-fast.done
	<-slow.done
	checkOnce(t, q, []*process{fast, slow})
}

// A newcomer whose copy of the state ends in the middle keeps its own state.
func TestIncompleteCopyReplacesNothing(t *testing.T) {
	endpoints, members := make([]*ring.Endpoint, 2), make([]ring.Member, 2)
	for i := range endpoints {
		e, err := ring.Listen("127.0.0.1:0", [16]byte{1}, ring.Config{Log: quiet()})
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		endpoints[i], members[i] = e, ring.Member{ID: fmt.Sprint("m", i), Address: e.Addr().String()}
	}
	newcomer := newCounts(1000)
	var sending sync.WaitGroup
	sending.Go(func() { // the first vector arrives, and the second one does not
		g, err := endpoints[0].Form(within(t), ring.Membership{Generation: 1, Rank: 0, Members: members})
		if err != nil {
			t.Error(err)
			return
		}
		vector := make([]float32, 1000)
		for i := range vector {
			vector[i] = 1
		}
		for _, b := range [][]byte{nil, floats.Bytes(vector)} {
			if err := g.Broadcast(within(t), 0, []int{1}, b); err != nil {
				t.Error(err)
			}
		}
		if _, err := g.Gather(within(t), nil); err == nil { // it ends with the receiver, whose next call is another one
			t.Error("expected an error of another collective")
		}
		g.Close()
	})
	g, err := endpoints[1].Form(within(t), ring.Membership{Generation: 1, Rank: 1, Members: members})
	if err != nil {
		t.Fatal(err)
	}
	m := &Member{Model: newcomer, Lock: &newcomer.mu, Log: quiet()}
	if err := m.receive(within(t), g, 0, []int{1}, state{tag: tag{1, 9}, length: 1001}, nil); !isOfRing(err) {
		t.Errorf("expected an error of the group, found %v", err)
	}
	g.Abort("the copy has ended")
	g.Close()
	sending.Wait()
	if newcomer.added[0] != 0 || m.tag.version != 0 {
		t.Errorf("expected the state of before, found %v with version %d", newcomer.added[0], m.tag.version)
	}
}
