package sim

import (
	"container/heap"
	"fmt"
	"iter"
	"math/rand/v2"
	"time"
)

// loop runs events in virtual time. It orders them by time, and by creation if the times are
// equal. The seed decides every event.
type loop struct {
	rng    *rand.Rand
	now    time.Duration
	made   uint64
	events events
	failed error // the first violation
	lines  []string
	trace  bool
}

type event struct {
	at time.Duration
	n  uint64
	do func()
}

type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return e[i].at < e[j].at || e[i].at == e[j].at && e[i].n < e[j].n
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(v any)   { *e = append(*e, v.(event)) }
func (e *events) Pop() any {
	last := len(*e) - 1
	v := (*e)[last]
	(*e)[last] = event{}
	*e = (*e)[:last]
	return v
}

func (l *loop) after(d time.Duration, do func()) {
	l.made++
	heap.Push(&l.events, event{l.now + max(d, 0), l.made, do})
}

// step runs the next event. It returns false if there is none.
func (l *loop) step() bool {
	if len(l.events) == 0 {
		return false
	}
	e := heap.Pop(&l.events).(event)
	l.now = e.at
	e.do()
	return true
}

// chance is true with probability p.
func (l *loop) chance(p float64) bool { return p > 0 && l.rng.Float64() < p }

// between draws a duration from a uniform distribution.
func (l *loop) between(least, most time.Duration) time.Duration {
	return least + time.Duration(l.rng.Int64N(int64(most-least)+1))
}

// note adds a line to the trace.
func (l *loop) note(format string, args ...any) {
	if l.trace {
		l.lines = append(l.lines, fmt.Sprintf("%10.4f  ", l.now.Seconds())+fmt.Sprintf(format, args...))
	}
}

// breaks records a violation. Later violations are ignored.
func (l *loop) breaks(invariant, format string, args ...any) {
	if l.failed == nil {
		l.failed = &Violation{Invariant: invariant, Detail: fmt.Sprintf(format, args...)}
		l.note("VIOLATION %v", l.failed)
	}
}

// Violation is the error of a violated invariant.
type Violation struct {
	Invariant string
	Detail    string
}

func (v *Violation) Error() string { return v.Invariant + ": " + v.Detail }

// machine runs one process at a time. Events of an earlier process are dropped. Events that
// come due during a pause run after it.
type machine struct {
	*loop
	name   string
	run    int // increases when a process starts and when it crashes
	up     bool
	paused time.Duration // end of the pause
	stop   func()        // ends the process
}

func (m *machine) awake() bool { return m.up && m.now >= m.paused }

// after is loop.after for the current process.
func (m *machine) after(d time.Duration, do func()) {
	life := m.run
	var due func()
	due = func() {
		switch {
		case m.run != life || !m.up:
		case m.now < m.paused:
			m.loop.after(m.paused-m.now+m.between(0, 20*time.Millisecond), due) // delayed events run in any order
		default:
			do()
		}
	}
	m.loop.after(d, due)
}

// start starts a process. Its body runs until it returns or the machine crashes. The body may
// block in wait.
func (m *machine) start(body func(p *process)) {
	m.run++
	m.up, m.paused, m.stop = true, 0, func() {}
	m.beside(body)
}

// beside starts a concurrent body in the current process.
func (m *machine) beside(body func(p *process)) {
	p := &process{machine: m}
	next, stop := iter.Pull(func(yield func(struct{}) bool) {
		p.yield = yield
		defer func() {
			if r := recover(); r != nil && r != any(errCrash) {
				panic(r)
			}
		}()
		body(p)
	})
	others := m.stop
	p.resume, m.stop = next, func() { others(); stop() }
	m.after(0, func() { p.resume() })
}

// crash ends the process at its current wait.
func (m *machine) crash() {
	m.up = false
	m.run++
	m.stop()
}

type crashed struct{}

var errCrash = crashed{}

// process is a running body on a machine.
type process struct {
	*machine
	resume func() (struct{}, bool)
	yield  func(struct{}) bool
	stir   func() // wakes a component of a term; nil before its first wait
	waits  int    // number of the current wait
	idle   bool
}

// wait blocks until wake, which arm receives, is called. Later calls of wake have no effect.
func (p *process) wait(arm func(wake func())) {
	p.waits++
	p.idle = true
	n := p.waits
	arm(func() {
		p.machine.after(0, func() {
			if p.idle && p.waits == n {
				p.idle = false
				p.resume()
			}
		})
	})
	if !p.yield(struct{}{}) {
		panic(errCrash)
	}
}

func (p *process) sleep(d time.Duration) {
	p.wait(func(wake func()) { p.machine.after(d, wake) })
}
