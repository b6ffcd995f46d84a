package tcpproxy

import (
	"bytes"
	"net"
	"sync"
	"time"
)

// window is how many bytes may be under way in one direction of a connection before its sender has to wait; held ones do
// not count.
const window = 16 << 20

// readSize is the most that is read at once.
const readSize = 64 << 10

// link is a client's connection with the one to the server.
type link struct {
	target            string
	requests, replies *way
}

func (l *link) close() {
	l.requests.close()
	l.replies.close()
}

// valve is what happens to one direction.
type valve struct {
	shut  bool
	delay time.Duration
}

// parcel is what was read at once; none of it: the sender's end of the connection.
type parcel struct {
	read  time.Time
	bytes []byte
}

// way is one direction of one connection. fill and drain run at the same time.
type way struct {
	from, to net.Conn
	news     chan struct{} // tells drain that it may have something to do

	mu     sync.Mutex
	room   sync.Cond // tells fill that it may go on
	valve  valve
	queue  []parcel
	held   int // bytes in queue
	closed bool
}

func newWay(from, to net.Conn, v valve) *way {
	w := &way{from: from, to: to, news: make(chan struct{}, 1), valve: v}
	w.room.L = &w.mu
	return w
}

func (w *way) set(v valve) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.valve = v
	w.wakeLocked()
}

func (w *way) waiting() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.held
}

// close ends the way, and its sender's connection.
func (w *way) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	_ = w.from.Close() // may be closed already
	w.closed, w.queue, w.held = true, nil, 0
	w.wakeLocked()
}

func (w *way) wakeLocked() {
	w.room.Signal()
	w.tellLocked()
}

func (w *way) tellLocked() {
	select {
	case w.news <- struct{}{}:
	default: // it was told already
	}
}

// fill reads until the sender ends, or the way does.
func (w *way) fill() {
	buf := make([]byte, readSize)
	for {
		n, err := w.from.Read(buf)
		now := time.Now()
		if n > 0 && !w.put(parcel{now, bytes.Clone(buf[:n])}) {
			return
		}
		if err != nil {
			w.put(parcel{read: now})
			return
		}
	}
}

// put waits for room; false when the way is closed.
func (w *way) put(p parcel) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for !w.closed && !w.valve.shut && w.held >= window {
		w.room.Wait()
	}
	if w.closed {
		return false
	}
	w.queue = append(w.queue, p)
	w.held += len(p.bytes)
	if len(w.queue) == 1 { // else drain waits for another one before it
		w.tellLocked()
	}
	return true
}

// drain writes what is due until the sender's end is, the way is closed, or the receiver is gone.
func (w *way) drain() {
	for {
		due, ok := w.take()
		if !ok {
			return
		}
		if _, err := due.WriteTo(w.to); err != nil {
			return
		}
	}
}

// take waits until something is due; false when there will be nothing more.
func (w *way) take() (due net.Buffers, ok bool) {
	for {
		due, wait, ended := w.due(time.Now())
		if len(due) > 0 || ended {
			return due, !ended
		}
		var ripe <-chan time.Time
		if wait > 0 {
			ripe = time.After(wait)
		}
		select {
		case <-ripe:
		case <-w.news:
		}
	}
}

// due takes from the queue all that may go on now. If that is nothing, wait is when something will be, and 0 when the time
// alone does not tell.
func (w *way) due(now time.Time) (due net.Buffers, wait time.Duration, ended bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for !w.valve.shut && len(w.queue) > 0 {
		first := w.queue[0]
		if wait = first.read.Add(w.valve.delay).Sub(now); wait > 0 {
			break
		}
		if len(first.bytes) == 0 { // stays, for the next call
			ended = len(due) == 0
			break
		}
		due = append(due, first.bytes)
		w.held -= len(first.bytes)
		w.queue[0] = parcel{} // what was passed on need not be kept
		w.queue = w.queue[1:]
	}
	w.room.Signal()
	return due, wait, ended || w.closed
}
