package pserver_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"trainmaster/master/psclient"
	"trainmaster/pserver"
	"trainmaster/trainer/params"
)

// slowReads is the registration of a server that reads nothing of etcd between its request for a set and release.
type slowReads struct {
	*place
	once           sync.Once
	asked, release chan struct{}
}

func (p *slowReads) ClaimPS(ctx context.Context, addr string, waiting func(string)) (pserver.Claim, error) {
	_, err := p.place.ClaimPS(ctx, addr, waiting)
	return p, err
}

func (p *slowReads) Current(ctx context.Context) (pserver.JobState, error) {
	select {
	case <-p.asked:
		<-p.release
	default:
	}
	return p.place.Current(ctx)
}

func (p *slowReads) AskSet(ctx context.Context) error {
	err := p.place.AskSet(ctx)
	p.once.Do(func() { close(p.asked) })
	return err
}

// destination is a job in which server 1 has its first blocks, and more of them are to move to it.
type destination struct {
	t            *testing.T
	book         *book
	dir          string
	start, grads []params.Tensor
	source       *params.Client
	placer       *psclient.Client
	stored       []byte // placement
	reads        *slowReads
	server       *server
	stop         func()
}

func newDestination(t *testing.T) *destination {
	t.Helper()
	d := &destination{t: t, book: newBook(1), dir: t.TempDir(), start: small(random(1)), grads: small(random(2))}
	startServer(t, d.book, 0, pserver.Config{CheckpointDir: d.dir})
	d.source = connect(t, d.book, params.Config{Mode: params.Async, Optimizer: heavy, Incarnation: 7})
	mustInit(t, d.source, clone(d.start))
	mustPush(t, d.source, 1, d.grads)
	d.placer = newPlacer(t, d.book)
	d.stored = resize(t, d.book, d.placer, 2)

	d.reads = &slowReads{place: &place{book: d.book, index: 1, lost: make(chan struct{})}, asked: make(chan struct{}), release: make(chan struct{})}
	d.book.mu.Lock()
	d.book.addrs = append(d.book.addrs, "")
	d.book.mu.Unlock()
	s, err := pserver.New(pserver.Config{CheckpointDir: d.dir, Registry: d.reads, Log: quiet()})
	must(t, err)
	ctx, stop := context.WithCancel(context.Background())
	d.stop = stop
	d.server = &server{place: d.reads.place, addr: s.Addr(), stop: stop, done: make(chan error, 1)}
	go func() { d.server.done <- s.Run(ctx) }()
	t.Cleanup(func() { d.reads.lose(); stop(); d.server.wait() })
	d.served("first step of the migration", func() error {
		next, _, err := d.placer.Move(within(t), 1, d.stored)
		if err == nil {
			d.stored = next
		}
		return err
	})
	commitPlacement(t, d.book, d.placer, d.stored)
	return d
}

// served repeats a call until the servers accept it.
func (d *destination) served(what string, call func() error) {
	d.t.Helper()
	for limit := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) { // between two attempts
		if err := call(); err == nil {
			return
		} else if time.Now().After(limit) {
			d.t.Fatalf("%s: %v", what, err)
		}
	}
}

// commit stores a placement. The servers do not know it yet.
func (d *destination) commit(next []byte) {
	d.stored = next
	d.book.mu.Lock()
	d.book.job.Placement = next
	d.book.mu.Unlock()
}

// check restarts the destination, and compares the parameters with the given number of steps.
func (d *destination) check(steps int) {
	d.t.Helper()
	must(d.t, d.server.wait())
	startServer(d.t, d.book, 1, pserver.Config{CheckpointDir: d.dir})
	d.served("placement", func() error { return d.placer.SendPlacement(within(d.t), 1, d.stored) }) // ends the freeze at the source
	wantModel(d.t, "after the restart of the destination", d.book, d.start, d.grads, steps)
}

// The set that a stopping server waits for has no blocks that arrive later. They stay at their source, with all updates.
func TestStoppingServerTakesNoBlocks(t *testing.T) {
	d := newDestination(t)
	d.stop()
	<-d.reads.asked
	mustPush(t, d.source, 2, d.grads)
	if next, _, err := d.placer.Move(within(t), 1, d.stored); err == nil {
		d.commit(next)
		t.Error("expected that a stopping server takes no blocks")
	}
	close(d.reads.release)
	d.check(2)
}

// Blocks that arrived before the stop, and belong to the server after it, are in the set that the server waits for.
func TestStoppingServerSavesBlocksThatHaveArrived(t *testing.T) {
	d := newDestination(t)
	close(d.reads.release)
	mustPush(t, d.source, 2, d.grads)
	next, _, err := d.placer.Move(within(t), 1, d.stored)
	must(t, err)
	d.stop()
	<-d.reads.asked
	select {
	case err := <-d.server.done:
		d.server.done <- err
		t.Error("the server stopped before it knew whether the blocks are its own")
	case <-time.After(time.Second): // a set takes some milliseconds
	}
	d.commit(next)
	d.served("placement", func() error { return d.placer.SendPlacement(within(t), 1, d.stored) })
	d.check(2)
}
