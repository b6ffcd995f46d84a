package e2e

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/rpc"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	clientv3 "go.etcd.io/etcd/client/v3"

	"trainmaster/etcdstore/etcdtest"
	"trainmaster/master/netrpc/wire"
	"trainmaster/taskqueue"
	"trainmaster/trainer/session"
)

var linearFor = flag.Duration("linear.for", 5*time.Second, "`duration` of the linearizability test")

// journal is the history of the calls of trainers, and of the ledger events that a watch received.
type journal struct {
	began time.Time

	mu       sync.Mutex
	history  []porcupine.Operation
	tokens   []taskqueue.Token // dispatched tokens; other callers finish some of them again
	answered map[token]bool    // dispatches whose answer arrived
	seen     []sight
}

// token identifies an attempt of a task.
type token struct {
	at      taskPosition
	attempt taskqueue.Attempt
}

// sight is an event of the ledger that the watch received.
type sight struct {
	taskqueue.LedgerEvent
	when int64
}

func (l *journal) now() int64 { return int64(time.Since(l.began)) }

func (l *journal) add(client int, call, end int64, a act, r result) {
	l.history = append(l.history, porcupine.Operation{ClientId: client, Input: a, Call: call, Output: r, Return: end})
}

// forever is the end of a call without an answer.
const forever = int64(1) << 60

// watch records the events that are written to the ledger, until ctx ends. It checks that the events of a commit are in the
// transaction of its state.
func (l *journal) watch(ctx context.Context, t *testing.T, j *job, from int64) {
	prefix := j.store.Prefix()
	options := []clientv3.OpOption{clientv3.WithPrefix(), clientv3.WithRev(from)}
	for answer := range j.store.Client().Watch(ctx, prefix+"/", options...) {
		if err := answer.Err(); err != nil {
			t.Errorf("watch: %v", err)
		}
		when := l.now()
		states := map[int64]bool{} // revisions at which the state was written
		for _, event := range answer.Events {
			if string(event.Kv.Key) == prefix+"/task_queues" {
				states[event.Kv.ModRevision] = true
			}
		}
		for _, event := range answer.Events {
			key, ok := strings.CutPrefix(string(event.Kv.Key), prefix+"/ledger/0")
			if !ok || event.Type != clientv3.EventTypePut {
				continue
			}
			if !states[event.Kv.ModRevision] {
				t.Errorf("commit %s of the ledger was written without a state", key)
			}
			for entry, err := range taskqueue.LedgerEvents(event.Kv.Value) {
				if err != nil {
					t.Errorf("commit %s of the ledger: %v", key, err)
					break
				}
				l.mu.Lock()
				l.seen = append(l.seen, sight{entry, when})
				l.mu.Unlock()
			}
		}
	}
}

// resolve completes the calls without an answer from the events of the watch. A finish in the ledger ended when the watch
// received it; a finish that is not in the ledger is removed. A dispatch in the ledger without an answer is added.
func (l *journal) resolve() []porcupine.Operation {
	finished := map[token]int64{}
	history := slices.Clone(l.history)
	resolver := len(history)
	for _, s := range l.seen {
		at := token{taskPosition{s.Pass, s.Position}, s.Attempt}
		switch s.Kind {
		case taskqueue.EventFinished:
			finished[at] = s.when
		case taskqueue.EventDispatched:
			if !l.answered[at] {
				history = append(history, porcupine.Operation{ClientId: resolver, Input: act{at.at, dispatching, at.attempt}, Output: result{}, Call: 0, Return: s.when})
				resolver++ // a client for each dispatch, because they overlap
			}
		}
	}
	history = slices.DeleteFunc(history, func(op porcupine.Operation) bool {
		a := op.Input.(act)
		_, there := finished[token{a.at, a.attempt}]
		return a.kind == finishing && op.Output.(result).unknown && !there
	})
	for i, op := range history {
		if a := op.Input.(act); a.kind == finishing && op.Output.(result).unknown {
			history[i].Return = max(finished[token{a.at, a.attempt}], op.Call)
		}
	}
	return history
}

// caller is a trainer without the trainer package. It sometimes dies, and finishes tasks of other callers.
type caller struct {
	j      *job
	log    *journal
	number int
	random *rand.Rand

	client *rpc.Client
	joined *wire.JoinReply
	seq    uint64
	commit uint64
	proof  []byte // proof of commit
}

var errAbandoned = errors.New("abandoned")

// call repeats a request until it is answered, as trainers do, or abandons it. repeated reports whether it was sent more than once.
func (c *caller) call(ctx context.Context, method string, request, reply any, abandon bool) (repeated bool, err error) {
	for sent := 0; ctx.Err() == nil; {
		if c.client == nil && !c.dial(ctx) {
			continue
		}
		pending := c.client.Go("RPCServer."+method, request, reply, make(chan *rpc.Call, 1))
		sent++
		patience := 700 * time.Millisecond // a paused or partitioned master does not answer
		if abandon {
			patience = time.Duration(c.random.IntN(int(2 * time.Millisecond)))
		}
		select {
		case done := <-pending.Done:
			if err := wire.Error(done.Error); session.Classify(err) == session.Answered {
				return sent > 1, err
			}
		case <-time.After(patience):
		}
		_ = c.client.Close() // not used again
		c.client = nil
		if abandon {
			return sent > 1, errAbandoned
		}
	}
	return true, errors.Join(errAbandoned, ctx.Err())
}

// dial connects to the announced leader.
func (c *caller) dial(ctx context.Context) bool {
	addr, err := c.j.store.MasterAddr(ctx)
	if err == nil && addr.Addr != "" {
		dialing, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		if c.client, err = dialRPC(dialing, addr.Addr); err == nil {
			return true
		}
	}
	select {
	case <-ctx.Done():
	case <-time.After(10 * time.Millisecond):
	}
	return false
}

// dialRPC is rpc.DialHTTP with a time limit: a paused master accepts and does not answer.
func dialRPC(ctx context.Context, addr string) (*rpc.Client, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() }) // ends the handshake
	defer stop()
	if _, err := io.WriteString(conn, "CONNECT "+rpc.DefaultRPCPath+" HTTP/1.0\n\n"); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	answer, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: http.MethodConnect})
	if err != nil || answer.StatusCode != http.StatusOK {
		return nil, errors.Join(fmt.Errorf("%s is no master: %v", addr, answer), err, conn.Close())
	}
	return rpc.NewClient(conn), nil
}

// work requests tasks and finishes them until ctx ends.
func (c *caller) work(ctx context.Context) error {
	var finished []taskqueue.Result
	for ctx.Err() == nil {
		if c.joined == nil {
			c.joined, c.seq = &wire.JoinReply{}, 0
			if _, err := c.call(ctx, "Join", wire.JoinRequest{ID: fmt.Sprintf("caller-%d", c.number)}, c.joined, false); err != nil {
				c.joined = nil
				if errors.Is(err, errAbandoned) {
					continue
				}
				return err
			}
		}
		if c.random.IntN(4) == 0 {
			finished = append(finished, c.others()...)
		}
		got, err := c.next(ctx, finished)
		switch {
		case err == nil && got != nil:
			finished = []taskqueue.Result{{Token: *got}}
		case err == nil:
			finished = nil
		case errors.Is(err, wire.ErrRejoin), errors.Is(err, errAbandoned):
			c.joined, finished = nil, nil // the caller died; it joins again with the same id
		default:
			return err
		}
	}
	return nil
}

// others returns a recent dispatch of any caller.
func (c *caller) others() (list []taskqueue.Result) {
	c.log.mu.Lock()
	defer c.log.mu.Unlock()
	if n := len(c.log.tokens); n > 0 {
		list = append(list, taskqueue.Result{Token: c.log.tokens[n-1-c.random.IntN(min(n, 8))]})
	}
	return list
}

// next sends a request and adds it to the journal. The finishes of a request and the dispatch in its answer concern
// different tasks; next removes repeated finishes.
func (c *caller) next(ctx context.Context, finished []taskqueue.Result) (*taskqueue.Token, error) {
	slices.SortFunc(finished, func(a, b taskqueue.Result) int { return a.Token.Position - b.Token.Position })
	finished = slices.CompactFunc(finished, func(a, b taskqueue.Result) bool { return a.Token == b.Token })
	c.seq++
	request := wire.NextRequest{
		Trainer: c.joined.Trainer, Seq: c.seq, Ack: c.seq, Finished: finished, Want: true, SeenCommit: c.commit, SeenProof: c.proof, JobID: c.joined.JobID,
	}
	reply := &wire.NextReply{}
	began := c.log.now()
	repeated, err := c.call(ctx, "Next", request, reply, c.random.IntN(30) == 0)
	l := c.log
	ended := l.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, f := range finished {
		a := act{taskPosition{f.Token.Pass, f.Token.Position}, finishing, f.Token.Attempt}
		if err != nil {
			l.add(len(l.history), began, forever, a, result{unknown: true})
			continue
		}
		l.add(len(l.history), began, ended, a, result{verdict: reply.Finishes[i], repeated: repeated})
	}
	if err != nil || reply.Task.Index < 0 {
		return nil, err
	}
	if reply.Commit > c.commit {
		c.commit, c.proof = reply.Commit, reply.CommitProof
	}
	got := reply.Task.Token
	at := taskPosition{got.Pass, got.Position}
	l.add(len(l.history), began, ended, act{at, dispatching, got.Attempt}, result{})
	l.answered[token{at, got.Attempt}] = true
	l.tokens = append(l.tokens, got)
	return &got, nil
}

// Three masters serve trainers that die, repeat requests, and finish tasks of other trainers. The leader is killed, paused and
// partitioned while it writes. The histories are linearizable. One order of all calls exists in which each task of each pass
// is counted at most once, no attempt is dispatched twice, and no acknowledged finish is undone.
func TestLinearizable(t *testing.T) {
	t.Parallel()
	j := newJob(t)
	flags := []string{"--passes", "0", "--holddown", "2s", "--lease-ttl", "60s", "--task-max-failures", "1000000", "--session-ttl", "5s"}
	type proxied struct {
		*process
		proxy *etcdtest.Proxy
	}
	masters := map[string]proxied{} // by address
	startOne := func() {
		addr, proxy := closedAddr(t), etcdtest.StartProxy(t, j.endpoint)
		masters[addr] = proxied{j.behind(proxy).master(append(flags, "--listen", addr)...), proxy}
	}
	for range 3 {
		startOne()
	}
	term := j.awaitLeader(0)
	client := j.dialLeader()
	var dummy int
	call(t, client, "ReportDataset", j.data.Train.Paths, &dummy)
	_, revision, err := j.store.State(t.Context())
	if err != nil {
		t.Fatal(err)
	}

	log := &journal{began: time.Now(), answered: map[token]bool{}}
	watching, stopWatch := context.WithCancel(t.Context())
	var watch, callers sync.WaitGroup
	watch.Go(func() { log.watch(watching, t, j, revision) })
	working, stopWork := context.WithCancel(t.Context())
	for i := range 4 {
		c := &caller{j: j, log: log, number: i, random: rand.New(rand.NewPCG(1, uint64(i)))}
		callers.Go(func() {
			if err := c.work(working); err != nil {
				t.Errorf("caller %d: %v", i, err)
			}
			if c.client != nil {
				_ = c.client.Close() // may have broken
			}
		})
	}
	for fault := 0; time.Since(log.began) < *linearFor || fault < 3; fault++ {
		log.awaitMore(t, 100)
		addr, err := j.store.MasterAddr(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		leader, ok := masters[addr.Addr]
		if !ok {
			continue // the leader is changing
		}
		switch fault % 3 {
		case 0: // its writes arrive late, in the next term, and no connection breaks
			leader.proxy.HoldRequests(true)
			leader.proxy.HoldReplies(true)
		case 1:
			leader.kill()
			delete(masters, addr.Addr)
			startOne()
		case 2:
			leader.signal(syscall.SIGSTOP)
		}
		term = j.awaitLeader(term)
		log.awaitMore(t, 20)
		leader.proxy.HoldRequests(false)
		leader.proxy.HoldReplies(false)
		leader.signal(syscall.SIGCONT)
	}
	log.awaitMore(t, 100)
	stopWork()
	callers.Wait()

	history := log.final(t, j)
	stopWatch()
	watch.Wait()
	verdict, why := linearizable(history, time.Minute)
	if verdict != porcupine.Ok {
		t.Fatalf("a history of %d calls: %s\n%s", len(history), verdict, why)
	}
	t.Logf("%d calls are linearizable; %d of them had no answer, %d were repeated", len(history), countOf(history, func(r result) bool { return r.unknown }), countOf(history, func(r result) bool { return r.repeated }))
	wantManipulatedRejected(t, history)
}

func countOf(history []porcupine.Operation, is func(result) bool) (n int) {
	for _, op := range history {
		if is(op.Output.(result)) {
			n++
		}
	}
	return n
}

// awaitMore waits until as many more calls are in the journal.
func (l *journal) awaitMore(t *testing.T, n int) {
	t.Helper()
	length := func() int {
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.history)
	}
	from := length()
	eventually(t, "further calls", func() (bool, string) { return length() >= from+n, fmt.Sprint(length()-from, " calls") })
}

// final adds a read of the final state in etcd for each task of the history, and returns the history.
func (l *journal) final(t *testing.T, j *job) []porcupine.Operation {
	t.Helper()
	h := j.history()
	total := 0
	for _, n := range h.dispatched {
		total += n
	}
	eventually(t, "the watch has seen all of the ledger", func() (bool, string) {
		l.mu.Lock()
		defer l.mu.Unlock()
		finished, dispatched := 0, 0
		for _, s := range l.seen {
			switch s.Kind {
			case taskqueue.EventFinished:
				finished++
			case taskqueue.EventDispatched:
				dispatched++
			}
		}
		return finished >= len(h.finished) && dispatched >= total, fmt.Sprint(finished, " of ", len(h.finished), " finishes, ", dispatched, " of ", total, " dispatches")
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	history := l.resolve()
	called := map[taskPosition]bool{}
	for _, op := range history {
		called[op.Input.(act).at] = true
	}
	end := l.now()
	for at := range called {
		var counted taskqueue.Attempt
		if list := h.finished[at]; len(list) > 0 {
			counted = list[0].attempt
		}
		history = append(history, porcupine.Operation{ClientId: len(history), Input: act{at: at, kind: reading}, Output: result{counted: counted}, Call: end + 1, Return: end + 2})
	}
	return history
}

// wantManipulatedRejected fails the test unless the check rejects manipulated histories.
func wantManipulatedRejected(t *testing.T, history []porcupine.Operation) {
	t.Helper()
	for name, change := range map[string]func(op *porcupine.Operation, a act, r result) bool{
		"second finish counted": func(op *porcupine.Operation, a act, r result) bool {
			ok := a.kind == finishing && r.verdict == taskqueue.AlreadyCounted && !r.unknown && !r.repeated && acknowledged(history, a.at, op.Call)
			r.verdict = taskqueue.Counted
			op.Output = r
			return ok
		},
		"acknowledged finish lost": func(op *porcupine.Operation, a act, r result) bool {
			ok := a.kind == reading && r.counted != 0 && acknowledged(history, a.at, op.Call)
			op.Output = result{}
			return ok
		},
		"attempt dispatched twice": func(op *porcupine.Operation, a act, r result) bool {
			ok := a.kind == dispatching && a.attempt > 1
			a.attempt--
			op.Input = a
			return ok
		},
		"first finish refused": func(op *porcupine.Operation, a act, r result) bool {
			ok := a.kind == finishing && r.verdict == taskqueue.Counted && !r.unknown && !r.repeated && alone(history, a.at)
			r.verdict = taskqueue.Stale
			op.Output = r
			return ok
		},
	} {
		i := slices.IndexFunc(history, func(op porcupine.Operation) bool {
			return change(&op, op.Input.(act), op.Output.(result))
		})
		if i < 0 {
			t.Errorf("%s: expected a call to manipulate, found none", name)
			continue
		}
		manipulated := slices.Clone(history)
		change(&manipulated[i], history[i].Input.(act), history[i].Output.(result))
		if verdict, why := linearizable(manipulated, time.Minute); verdict != porcupine.Illegal || why == "" {
			t.Errorf("%s: the manipulated history is %s", name, verdict)
		}
	}
}

// acknowledged reports whether a finish of a task was acknowledged before a time.
func acknowledged(history []porcupine.Operation, at taskPosition, before int64) bool {
	return slices.ContainsFunc(history, func(op porcupine.Operation) bool {
		a, r := op.Input.(act), op.Output.(result)
		return a.at == at && a.kind == finishing && r.verdict == taskqueue.Counted && !r.unknown && op.Return < before
	})
}

// alone reports whether a history contains one finish of a task.
func alone(history []porcupine.Operation, at taskPosition) bool {
	n := 0
	for _, op := range history {
		if a := op.Input.(act); a.at == at && a.kind == finishing {
			n++
		}
	}
	return n == 1
}
