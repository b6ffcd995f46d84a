package tcpproxy

import (
	"bytes"
	"net"
	"sync"
	"time"
)

// window is the maximum number of bytes in transit in one direction of a connection. More bytes make the sender wait. Held bytes
// do not count.
const window = 16 << 20

// readSize is the maximum size of one read.
const readSize = 64 << 10

// link is the connection of a client with its connection to the server.
type link struct {
	target            string
	requests, replies *direction
}

func (l *link) close() {
	l.requests.close()
	l.replies.close()
}

// valve is the state of one direction.
type valve struct {
	blocked bool
	delay   time.Duration
}

// parcel has the bytes of one read; without bytes, it is the end of the stream.
type parcel struct {
	read  time.Time
	bytes []byte
}

// direction is one direction of one connection. fill and drain run at the same time.
type direction struct {
	from, to net.Conn
	news     chan struct{} // wakes drain

	mu          sync.Mutex
	room        sync.Cond // wakes fill when there is room
	valve       valve
	queue       []parcel
	queuedBytes int // bytes in queue
	closed      bool
}

func newWay(from, to net.Conn, v valve) *direction {
	w := &direction{from: from, to: to, news: make(chan struct{}, 1), valve: v}
	w.room.L = &w.mu
	return w
}

func (w *direction) set(v valve) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.valve = v
	w.wakeLocked()
}

func (w *direction) queued() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.queuedBytes
}

// close ends the way, and its sender's connection.
func (w *direction) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	_ = w.from.Close() // may be closed already
	w.closed, w.queue, w.queuedBytes = true, nil, 0
	w.wakeLocked()
}

func (w *direction) wakeLocked() {
	w.room.Signal()
	w.tellLocked()
}

func (w *direction) tellLocked() {
	select {
	case w.news <- struct{}{}:
	default: // drain has not yet taken the last signal
	}
}

// fill reads until the stream ends, or the way is closed.
func (w *direction) fill() {
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

// put waits for room. It returns false if the way is closed.
func (w *direction) put(p parcel) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for !w.closed && !w.valve.blocked && w.queuedBytes >= window {
		w.room.Wait()
	}
	if w.closed {
		return false
	}
	w.queue = append(w.queue, p)
	w.queuedBytes += len(p.bytes)
	if len(w.queue) == 1 { // else drain waits for an earlier parcel
		w.tellLocked()
	}
	return true
}

// drain writes due bytes until the end of the stream is due, the way is closed, or a write fails.
func (w *direction) drain() {
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

// take waits until bytes are due. It returns false at the end of the stream.
func (w *direction) take() (due net.Buffers, ok bool) {
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

// due removes the due bytes from the queue. If there are none, wait is the time until the next bytes are due, or 0 if that does not
// depend on time alone.
func (w *direction) due(now time.Time) (due net.Buffers, wait time.Duration, ended bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for !w.valve.blocked && len(w.queue) > 0 {
		first := w.queue[0]
		if wait = first.read.Add(w.valve.delay).Sub(now); wait > 0 {
			break
		}
		if len(first.bytes) == 0 { // stays, for the next call
			ended = len(due) == 0
			break
		}
		due = append(due, first.bytes)
		w.queuedBytes -= len(first.bytes)
		w.queue[0] = parcel{} // releases the memory of forwarded bytes
		w.queue = w.queue[1:]
	}
	w.room.Signal()
	return due, wait, ended || w.closed
}
