package netrpc

import (
	"container/list"
	"net"
	"sync"
	"time"

	"trainmaster/master/netrpc/wire"
)

// The bounds of large messages, over wire.MaxShortMessage, of all connections together. One
// remote host has half of the places at most.
const (
	maxArriving = 16 // of which some bytes are missing
	maxReports  = 4  // reports that are not answered
	maxFinishes = 4  // finished tasks that are being decoded

	// staleAfter is how long a message may be arriving before a newer one can take its place.
	staleAfter = time.Second
)

// largeMessages bounds the memory of large messages. No message waits for the bytes of
// another: a message takes a place in memory when all its bytes are there.
type largeMessages struct {
	finishes chan struct{}

	mu       sync.Mutex
	arriving list.List // of *arrival, oldest first
	hosts    map[string]hostLarge
	reports  int
}

// hostLarge is how many large messages one remote host has.
type hostLarge struct{ arriving, reports int }

// arrival is a large message that is arriving.
type arrival struct {
	host  string
	conn  net.Conn
	began time.Time
	place *list.Element
}

func newLargeMessages() *largeMessages {
	return &largeMessages{finishes: make(chan struct{}, maxFinishes), hosts: map[string]hostLarge{}}
}

// begin takes a place for a message that is arriving. If there is none, a message that has
// been arriving for longer than staleAfter loses its place, and its connection is closed; if
// all are younger, the error is wire.ErrBusy.
func (l *largeMessages) begin(host string, conn net.Conn) (*arrival, error) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	ofHost := l.hosts[host].arriving >= maxArriving/2
	if ofHost || l.arriving.Len() >= maxArriving {
		stale := l.oldest(host, ofHost)
		if now.Sub(stale.began) < staleAfter {
			return nil, wire.ErrBusy
		}
		l.endLocked(stale)
		stale.conn.Close()
	}
	a := &arrival{host: host, conn: conn, began: now}
	a.place = l.arriving.PushBack(a)
	h := l.hosts[host]
	h.arriving++
	l.hosts[host] = h
	return a, nil
}

// oldest returns the message that has been arriving for longest, of all or of one host.
func (l *largeMessages) oldest(host string, ofHost bool) *arrival {
	e := l.arriving.Front()
	for ofHost && e.Value.(*arrival).host != host {
		e = e.Next()
	}
	return e.Value.(*arrival)
}

// end gives the place of a message that has arrived back.
func (l *largeMessages) end(a *arrival) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.endLocked(a)
}

func (l *largeMessages) endLocked(a *arrival) {
	if a.place == nil {
		return // lost
	}
	l.arriving.Remove(a.place)
	a.place = nil
	h := l.hosts[a.host]
	h.arriving--
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
