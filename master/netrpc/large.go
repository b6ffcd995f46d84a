package netrpc

import (
	"container/list"
	"net"
	"sync"
	"time"

	"trainmaster/master/netrpc/wire"
)

// The bounds of large messages, over wire.MaxShortMessage, of all connections together. One
// remote host has half of the places for reports at most.
const (
	maxArriving = 16 * wire.MaxMessage // bytes of messages that are incomplete
	maxReports  = 4                    // reports that are not answered
	maxFinishes = 4                    // finished tasks that are being decoded

	// staleAfter is how long a message can arrive without progress before it is dropped for any other message.
	staleAfter = time.Second
)

// largeMessages bounds the memory of large messages. No message waits for the bytes of another. A message counts with
// the bytes that have arrived, not with its announced length, and takes a place for reports when it is complete.
type largeMessages struct {
	finishes chan struct{}

	mu       sync.Mutex
	arriving list.List // of *arrival with bytes, the one without progress for longest first
	bytes    int       // of all in arriving
	hosts    map[string]hostLarge
	reports  int
}

// hostLarge is what one remote host has: bytes that are arriving, and reports.
type hostLarge struct{ arriving, reports int }

// incomingMessage is a large message that is arriving.
type incomingMessage struct {
	host     string
	conn     net.Conn
	bytes    int
	progress time.Time
	place    *list.Element // nil: no bytes are counted
	lost     bool          // dropped for another message
}

func newLargeMessages() *largeMessages {
	return &largeMessages{finishes: make(chan struct{}, maxFinishes), hosts: map[string]hostLarge{}}
}

// grow counts n more bytes of a message that have arrived. If the total exceeds the limit, other messages are dropped
// and their connections are closed: see giveWay. If no message can be dropped, the bytes of this message are no longer
// counted, and the error is wire.ErrBusy.
func (l *largeMessages) grow(a *incomingMessage, n int) error {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if a.lost {
		return net.ErrClosed
	}
	for l.bytes+n > maxArriving {
		other := l.giveWay(a, n, now)
		if other == nil {
			l.endLocked(a)
			return wire.ErrBusy
		}
		l.endLocked(other)
		other.lost = true
		other.conn.Close()
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
func (l *largeMessages) giveWay(a *incomingMessage, n int, now time.Time) *incomingMessage {
	heaviest := a.host
	for host, h := range l.hosts {
		if h.arriving > l.hosts[heaviest].arriving {
			heaviest = host
		}
	}
	unfair := l.hosts[heaviest].arriving > l.hosts[a.host].arriving+n
	for e := l.arriving.Front(); e != nil; e = e.Next() {
		other := e.Value.(*incomingMessage)
		//guard:stalled-message-dropped
		if other != a && (now.Sub(other.progress) >= staleAfter || unfair && other.host == heaviest) {
			return other
		}
	}
	return nil
}

// end forgets the bytes of a message that has arrived.
func (l *largeMessages) end(a *incomingMessage) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.endLocked(a)
}

func (l *largeMessages) endLocked(a *incomingMessage) {
	if a.place == nil {
		return
	}
	l.arriving.Remove(a.place)
	a.place = nil
	l.count(a, -a.bytes)
}

// count adds n to the bytes of a message.
func (l *largeMessages) count(a *incomingMessage, n int) {
	a.bytes += n
	l.bytes += n
	h := l.hosts[a.host]
	h.arriving += n
	l.set(a.host, h)
}

// report takes a place for a report, if there is one.
func (l *largeMessages) report(host string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.hosts[host]
	if l.reports >= maxReports || h.reports >= maxReports/2 {
		return false
	}
	l.reports++
	h.reports++
	l.hosts[host] = h
	return true
}

// reported gives the place of a report back.
func (l *largeMessages) reported(host string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reports--
	h := l.hosts[host]
	h.reports--
	l.set(host, h)
}

func (l *largeMessages) set(host string, h hostLarge) {
	if h == (hostLarge{}) {
		delete(l.hosts, host)
		return
	}
	l.hosts[host] = h
}

// hostOf returns the address without the port.
func hostOf(addr net.Addr) string {
	host, _, err := net.SplitHostPort(addr.String())
	if err != nil {
		return addr.String()
	}
	return host
}
