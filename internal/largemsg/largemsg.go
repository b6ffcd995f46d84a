// Package largemsg bounds the memory of large messages that a port receives from clients that have shown nothing valid yet.
//
// A message counts with the bytes that have arrived, not with its announced length. If all messages together exceed the limit, a message
// without progress is dropped with its connection, so no message waits for the bytes of another for more than a second. A complete message takes a place
// before it is decoded.
package largemsg

import (
	"container/list"
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// The limits of messages, in bytes.
const (
	MaxMessage = 4 << 20
	MaxShort   = 64 << 10 // longer messages are large
)

// The bounds of the large messages of all connections together. One remote host has half of the places for reports at most.
const (
	MaxArriving = 16 * MaxMessage // bytes of messages that are incomplete
	MaxReports  = 4               // reports that are not answered
	MaxResults  = 4               // results of tasks that are being decoded, or processed
	MaxWaiting  = 16 * MaxMessage // bytes of results that are not answered, with the results that wait for their place

	// staleAfter is how long a message can arrive without progress before it is dropped for any other message.
	staleAfter = time.Second
)

// ErrBusy is returned if there is no memory for more bytes, and no message can be dropped.
var ErrBusy = errors.New("too many large messages at a time")

// Messages are the large messages of a port.
type Messages struct {
	// Results has a token for each result that is being decoded.
	Results chan struct{}

	mu       sync.Mutex
	arriving list.List // of *Message with bytes, the one without progress for longest first
	bytes    int       // of all in arriving
	hosts    map[string]hostLarge
	reports  int
	results  int // bytes
}

// hostLarge is what one remote host has: bytes that are arriving, and reports.
type hostLarge struct{ arriving, reports int }

// Message is a message that is arriving.
type Message struct {
	Host string
	Conn io.Closer // closed if the message is dropped

	bytes    int
	progress time.Time
	place    *list.Element // nil: no bytes are counted
	lost     bool          // dropped for another message
}

// New returns the messages of a port, of which none has arrived.
func New() *Messages {
	return &Messages{Results: make(chan struct{}, MaxResults), hosts: map[string]hostLarge{}}
}

// Grow counts n more bytes of a message that have arrived. If the total exceeds the limit, other messages are dropped
// and their connections are closed: see giveWay. If no message can be dropped, the bytes of this message are no longer
// counted, and the error is ErrBusy. The error of a message that was dropped is net.ErrClosed.
func (l *Messages) Grow(a *Message, n int) error {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if a.lost {
		return net.ErrClosed
	}
	for l.bytes+n > MaxArriving {
		other := l.giveWay(a, n, now)
		if other == nil {
			l.endLocked(a)
			return ErrBusy
		}
		l.endLocked(other)
		other.lost = true
		other.Conn.Close()
	}
	if a.place == nil {
		a.place = l.arriving.PushBack(a)
	}
	l.arriving.MoveToBack(a.place)
	a.progress = now
	l.count(a, n)
	return nil
}

// giveWay returns the message to drop for n more bytes of a. It is the message without progress for longest, if for at
// least staleAfter. Otherwise it is a message of the host with the most bytes, if the host of a will have fewer: hosts
// then get equal shares.
func (l *Messages) giveWay(a *Message, n int, now time.Time) *Message {
	heaviest := a.Host
	for host, h := range l.hosts {
		if h.arriving > l.hosts[heaviest].arriving {
			heaviest = host
		}
	}
	unfair := l.hosts[heaviest].arriving > l.hosts[a.Host].arriving+n
	for e := l.arriving.Front(); e != nil; e = e.Next() {
		other := e.Value.(*Message)
		//guard:stalled-message-dropped
		if other != a && (now.Sub(other.progress) >= staleAfter || unfair && other.Host == heaviest) {
			return other
		}
	}
	return nil
}

// End forgets the bytes of a message that has arrived.
func (l *Messages) End(a *Message) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.endLocked(a)
}

func (l *Messages) endLocked(a *Message) {
	if a.place == nil {
		return
	}
	l.arriving.Remove(a.place)
	a.place = nil
	l.count(a, -a.bytes)
}

// count adds n to the bytes of a message.
func (l *Messages) count(a *Message, n int) {
	a.bytes += n
	l.bytes += n
	h := l.hosts[a.Host]
	h.arriving += n
	l.set(a.Host, h)
}

// TakeReport takes a place for a report, if there is one.
func (l *Messages) TakeReport(host string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.hosts[host]
	if l.reports >= MaxReports || h.reports >= MaxReports/2 {
		return false
	}
	l.reports++
	h.reports++
	l.hosts[host] = h
	return true
}

// GiveReport gives the place of a report back.
func (l *Messages) GiveReport(host string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reports--
	h := l.hosts[host]
	h.reports--
	l.set(host, h)
}

// TakeResult takes memory for a result of n bytes, if there is some. The result waits for its place in Results then.
func (l *Messages) TakeResult(n int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.results+n > MaxWaiting {
		return false
	}
	l.results += n
	return true
}

// GiveResult gives the memory of a result back.
func (l *Messages) GiveResult(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.results -= n
}

func (l *Messages) set(host string, h hostLarge) {
	if h == (hostLarge{}) {
		delete(l.hosts, host)
		return
	}
	l.hosts[host] = h
}

// HostOf returns the address without the port.
func HostOf(addr net.Addr) string {
	host, _, err := net.SplitHostPort(addr.String())
	if err != nil {
		return addr.String()
	}
	return host
}

// Arriving returns the bytes of all incomplete messages.
func (l *Messages) Arriving() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.bytes
}
