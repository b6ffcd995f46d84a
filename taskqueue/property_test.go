package taskqueue

import (
	"bytes"
	"encoding/gob"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"trainmaster/recordio"
)

// tableOf returns a table of n tasks of one chunk each.
func tableOf(t rapid.TB, n int) *Table {
	t.Helper()
	table := NewTable(n)
	chunks := make([]recordio.Index, n)
	offset := int64(0)
	for i := range chunks {
		chunks[i] = recordio.Index{Offset: offset, Size: 100, Records: 10, Layout: recordio.First}
		offset = chunks[i].End()
	}
	if n > 0 {
		if err := table.Add(File{Path: "/data/part-00000", Size: offset}, chunks); err != nil {
			t.Fatal(err)
		}
	}
	return table
}

// pair is a queue with its naive reference queue, a store of the committed state, and clients with the state of real
// clients.
type pair struct {
	*rapid.T
	q     *Queue
	n     *naive
	opt   Options
	table *Table

	// The store, as of the last commit.
	stored []byte
	roster map[string][]byte
	naive  *naive
	ledger *Verifier

	joined   []*client
	plain    []*plainClient
	tokens   []Token // every token that was dispatched
	lastJoin uint64  // the newest incarnation
}

type client struct {
	id          string
	ordinal     Ordinal
	incarnation uint64
	seq, ack    uint64
	epoch       uint32
	held        []Token
	sent        []*Request
}

type plainClient struct {
	name        string
	ordinal     Ordinal
	incarnation uint64
	index       int
	token       Token
}

func newPair(t *rapid.T) *pair {
	opt := Options{
		Passes:        rapid.IntRange(0, 3).Draw(t, "passes"),
		MaxFailures:   rapid.IntRange(1, 2).Draw(t, "max failures"),
		MaxSetAside:   rapid.SampledFrom([]int{1, 1000}).Draw(t, "max set aside"),
		Rolling:       rapid.Bool().Draw(t, "rolling"),
		Speculate:     rapid.Bool().Draw(t, "speculate"),
		MaxSessions:   rapid.SampledFrom([]int{2, 4, 0}).Draw(t, "max sessions"),
		LossesIgnored: rapid.IntRange(0, 4).Draw(t, "losses ignored") == 0,
		TimeoutMin:    2 * time.Second,
		TimeoutMax:    rapid.SampledFrom([]time.Duration{8 * time.Second, time.Hour}).Draw(t, "timeout max"),
		FirstTimeout:  20 * time.Second,
	}
	tasks := rapid.OneOf(rapid.IntRange(1, 4), rapid.IntRange(1, 50)).Draw(t, "tasks")
	shuffle := rapid.Bool().Draw(t, "shuffle")
	p := &pair{
		T: t, opt: opt, table: tableOf(t, tasks), roster: map[string][]byte{}, ledger: NewVerifier(),
		q: New("job", [16]byte{1}, 7, opt), n: newNaive(opt, tasks, shuffle, 42),
	}
	if a := p.q.Apply(1, &Report{SetSpec: SetSpec{Shuffle: shuffle, Seed: 42}, Digest: [32]byte{9}, ReportID: "r", Table: p.table}); a.Err != nil {
		t.Fatalf("report: %v", a.Err)
	}
	p.commit()
	return p
}

func TestQueueAgainstNaive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := newPair(t)
		t.Repeat(map[string]func(*rapid.T){
			"":             func(*rapid.T) { p.compare() },
			"join":         p.join,
			"ask":          p.ask,
			"ask more":     p.ask,
			"finish":       p.finish,
			"finish too":   p.finish,
			"fail":         p.fail,
			"poison":       p.poison,
			"repeat":       p.repeat,
			"any token":    p.anyToken,
			"heartbeat":    p.heartbeat,
			"leave":        p.leave,
			"died":         p.died,
			"disconnect":   p.disconnect,
			"gone":         p.gone,
			"undelivered":  p.undelivered,
			"plain":        p.plainAsk,
			"plain again":  p.plainAsk,
			"pass time":    p.passTime,
			"retry aside":  p.retryAside,
			"drop":         p.dropTask,
			"pause":        p.pauseOrResume,
			"resume":       p.pauseOrResume,
			"drain":        p.drain,
			"save model":   p.saveModel,
			"commit":       func(*rapid.T) { p.commit() },
			"fail-over":    func(*rapid.T) { p.restart(false) },
			"refused":      func(*rapid.T) { p.restart(true) },
			"plain closed": p.plainClosed,
		})
		p.commit()
		p.checkLedger()
	})
}

// apply applies an event to the queue at the time of the pair.
func (p *pair) apply(ev Event) Answer {
	a := p.q.Apply(p.n.now, ev)
	if a.Kind == AnswerTask {
		p.tokens = append(p.tokens, a.Token)
		for _, more := range a.More {
			p.tokens = append(p.tokens, more.Token)
		}
	}
	return a
}

// agree compares an answer of the queue with the naive one.
func (p *pair) agree(what string, got, want Answer, tokens ...Token) {
	if (got.Err == nil) != (want.Err == nil) {
		p.Fatalf("%s: error %v, expected %v", what, got.Err, want.Err)
	}
	for i := range got.Finishes {
		if i < len(want.Finishes) && i < len(tokens) && p.n.closedVerdict(tokens[i], got.Finishes[i], want.Finishes[i]) {
			want.Finishes[i] = got.Finishes[i]
		}
	}
	got.Err, want.Err, got.repeated = nil, nil, false
	if len(got.Finishes) == 0 && len(want.Finishes) == 0 {
		got.Finishes, want.Finishes = nil, nil
	}
	if !reflect.DeepEqual(got, want) {
		p.Fatalf("%s:\n got      %+v\n expected %+v", what, got, want)
	}
}

func (p *pair) newIncarnation(incarnation uint64) {
	if incarnation <= p.lastJoin {
		p.Fatalf("incarnation %d after %d: expected a greater one", incarnation, p.lastJoin)
	}
	p.lastJoin = incarnation
}

func (p *pair) join(t *rapid.T) {
	id := rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "id")
	window := rapid.SampledFrom([]int{0, 0, 2, 3, 6, 100}).Draw(t, "window")
	got := p.apply(&Join{ID: id, Window: window})
	p.agree("join", got, p.n.join(id, window, got.Incarnation))
	if got.Ordinal == 0 {
		return // too many sessions
	}
	p.newIncarnation(got.Incarnation)
	p.joined = append(p.joined, &client{id: id, ordinal: got.Ordinal, incarnation: got.Incarnation})
}

// client draws a joined client, usually one of the newest.
func (p *pair) client(t *rapid.T) *client {
	if len(p.joined) == 0 {
		p.join(t)
	}
	if len(p.joined) == 0 {
		return &client{id: "nobody"}
	}
	newest := p.joined[max(0, len(p.joined)-4):]
	if rapid.IntRange(0, 9).Draw(t, "old client") == 0 {
		newest = p.joined
	}
	return rapid.SampledFrom(newest).Draw(t, "client")
}

// send sends a request to both queues. Unless the reply is lost, the client receives the answer.
func (p *pair) send(t *rapid.T, c *client, ev *Request, lost bool) {
	got := p.apply(ev)
	tokens := make([]Token, len(ev.Finished))
	for i := range tokens {
		tokens[i] = ev.Finished[i].Token
	}
	p.agree(fmt.Sprintf("request %+v", *ev), got, p.n.request(ev), tokens...)
	if lost || got.Kind != AnswerTask {
		return
	}
	for _, a := range append([]Answer{got}, got.More...) {
		if !slices.Contains(c.held, a.Token) {
			c.held = append(c.held, a.Token)
		}
	}
}

// request sends the next request of a client.
func (p *pair) request(t *rapid.T, c *client, finished []Result, want bool) {
	c.seq++
	if rapid.IntRange(0, 3).Draw(t, "ack") > 0 {
		c.ack = c.seq
	}
	ev := &Request{Trainer: c.ordinal, Incarnation: c.incarnation, Seq: c.seq, Ack: c.ack, Held: slices.Clone(c.held), Finished: finished, Want: want, Most: rapid.SampledFrom([]int{0, 1, 3, 20}).Draw(t, "most")}
	c.sent = append(c.sent, ev)
	p.send(t, c, ev, rapid.IntRange(0, 5).Draw(t, "reply lost") == 0)
}

func (p *pair) ask(t *rapid.T) { p.request(t, p.client(t), nil, true) }

// give draws a task that the client holds.
func (c *client) give(t *rapid.T) (Token, bool) {
	if len(c.held) == 0 {
		return Token{}, false
	}
	i := rapid.IntRange(0, len(c.held)-1).Draw(t, "held")
	tok := c.held[i]
	c.held = slices.Delete(c.held, i, i+1)
	return tok, true
}

func (p *pair) finish(t *rapid.T) {
	c := p.client(t)
	if tok, ok := c.give(t); ok {
		p.request(t, c, []Result{{Token: tok}}, rapid.Bool().Draw(t, "want"))
	} else {
		p.request(t, c, nil, true)
	}
}

func (p *pair) fail(t *rapid.T) {
	c := p.client(t)
	if tok, ok := c.give(t); ok {
		p.request(t, c, []Result{{Token: tok, Error: "bad record"}}, rapid.Bool().Draw(t, "want"))
	}
}

// poison fails each task that a client receives, several times in a row.
func (p *pair) poison(t *rapid.T) {
	c := p.client(t)
	for range rapid.IntRange(2, 6).Draw(t, "failures") {
		p.request(t, c, nil, true)
		if tok, ok := c.give(t); ok {
			p.request(t, c, []Result{{Token: tok, Error: "poison"}}, false)
		}
	}
}

func (p *pair) repeat(t *rapid.T) {
	c := p.client(t)
	if len(c.sent) == 0 {
		return
	}
	ev := c.sent[len(c.sent)-1]
	if rapid.IntRange(0, 4).Draw(t, "older") == 0 {
		ev = rapid.SampledFrom(c.sent).Draw(t, "sent")
	}
	p.send(t, c, ev, false)
}

// token draws a dispatched token, possibly changed, or an invented token.
func (p *pair) token(t *rapid.T) Token {
	tok := Token{
		Epoch: rapid.Uint32Range(0, 2).Draw(t, "epoch"), Kind: Kind(rapid.IntRange(0, 1).Draw(t, "kind")), Dataset: rapid.IntRange(-1, 1).Draw(t, "dataset"),
		Pass: Pass(rapid.Uint32().Draw(t, "pass")), Position: rapid.Int().Draw(t, "position"), Attempt: Attempt(rapid.Uint32().Draw(t, "attempt")),
	}
	if len(p.tokens) == 0 {
		return tok
	}
	was := rapid.SampledFrom(p.tokens).Draw(t, "token")
	switch rapid.IntRange(0, 8).Draw(t, "change") {
	case 0:
		return tok
	case 1:
		was.Pass += Pass(rapid.IntRange(-1, 1).Draw(t, "pass by"))
	case 2:
		was.Position += rapid.IntRange(-2, 2).Draw(t, "position by")
	case 3:
		was.Attempt += Attempt(rapid.IntRange(-1, 2).Draw(t, "attempt by"))
	case 4:
		was.Epoch++
	}
	return was
}

func (p *pair) anyToken(t *rapid.T) {
	r := Result{Token: p.token(t)}
	if rapid.Bool().Draw(t, "failed") {
		r.Error = "made up"
	}
	c := p.client(t)
	p.request(t, c, []Result{r}, rapid.Bool().Draw(t, "want"))
}

func (p *pair) heartbeat(t *rapid.T) {
	c := p.client(t)
	ev := &Heartbeat{Trainer: c.ordinal, Incarnation: c.incarnation, Moving: append(slices.Clone(c.held), p.token(t))}
	p.agree("heartbeat", p.apply(ev), p.n.heartbeat(ev))
}

func (p *pair) leave(t *rapid.T) {
	c := p.client(t)
	ev := &Leave{c.ordinal, c.incarnation}
	p.apply(ev)
	p.n.leave(ev)
}

func (p *pair) died(t *rapid.T) {
	c := p.client(t)
	ev := &Died{c.ordinal, c.incarnation}
	p.apply(ev)
	p.n.died(ev)
}

func (p *pair) disconnect(t *rapid.T) {
	c := p.client(t)
	ev := &Disconnected{c.ordinal, c.incarnation}
	p.apply(ev)
	p.n.disconnected(ev)
}

func (p *pair) gone(t *rapid.T) {
	ev := &Gone{ID: p.client(t).id, Charge: rapid.Bool().Draw(t, "charge")}
	p.apply(ev)
	p.n.goneTrainer(ev)
}

func (p *pair) undelivered(t *rapid.T) {
	c := p.client(t)
	ev := &Undelivered{c.ordinal, c.incarnation, p.token(t)}
	if len(c.held) > 0 {
		ev.Token = c.held[len(c.held)-1]
	}
	p.apply(ev)
	p.n.undelivered(ev)
}

// plainAsk draws a connection that finishes its last task, repeats an earlier reply, or sends any other token.
func (p *pair) plainAsk(t *rapid.T) {
	if len(p.plain) == 0 || len(p.plain) < 6 && rapid.IntRange(0, 3).Draw(t, "new connection") == 0 {
		p.plain = append(p.plain, &plainClient{name: rapid.SampledFrom([]string{"1:1", "1:2", "a"}).Draw(t, "name"), index: -1})
	}
	c := rapid.SampledFrom(p.plain).Draw(t, "connection")
	ev := &PlainAsk{
		Trainer: c.ordinal, Incarnation: c.incarnation, Connection: c.name, Finished: c.index >= 0, Index: c.index, Result: Result{Token: c.token},
		Want: rapid.IntRange(0, 4).Draw(t, "want") > 0,
	}
	switch rapid.IntRange(0, 9).Draw(t, "plain change") {
	case 0:
		ev.Index = rapid.Int().Draw(t, "index")
	case 1, 2:
		ev.Token = Token{}
	case 3:
		ev.Token = p.token(t)
	case 4:
		ev.Error = "plain failure"
	case 5:
		ev.Finished = false
	}
	got := p.apply(ev)
	incarnation := uint64(0)
	if got.Ordinal != ev.Trainer && got.Ordinal != 0 {
		incarnation = got.Incarnation
		p.newIncarnation(incarnation)
	}
	p.n.judged = Token{}
	want := p.n.plainAsk(ev, incarnation)
	p.agree(fmt.Sprintf("plain %+v", *ev), got, want, p.n.judged)
	if got.Ordinal != 0 {
		c.ordinal, c.incarnation = got.Ordinal, got.Incarnation
	}
	if got.Kind == AnswerTask {
		c.index, c.token = got.Index, got.Token
	}
}

func (p *pair) plainClosed(t *rapid.T) {
	if len(p.plain) == 0 {
		return
	}
	i := rapid.IntRange(0, len(p.plain)-1).Draw(t, "connection")
	ev := &Disconnected{p.plain[i].ordinal, p.plain[i].incarnation}
	p.apply(ev)
	p.n.disconnected(ev)
	p.plain = slices.Delete(p.plain, i, i+1)
}

func (p *pair) passTime(t *rapid.T) {
	p.n.now += Clock(rapid.SampledFrom([]int{1, 100, 1000, 5000, 16000, 30000}).Draw(t, "ms"))
	p.apply(&Tick{})
	p.n.tick()
}

func (p *pair) retryAside(t *rapid.T) {
	ev := &RetryAside{Index: rapid.IntRange(-1, p.n.tasks).Draw(t, "task")}
	if list := p.q.SetAsideTasks(0); len(list) > 0 {
		ev.Index = rapid.SampledFrom(list).Draw(t, "aside")
	}
	got, want := p.apply(ev), p.n.retryAside(ev)
	if (got.Err == nil) != want {
		p.Fatalf("retry of task %d: %v, expected success: %v", ev.Index, got.Err, want)
	}
}

func (p *pair) dropTask(t *rapid.T) {
	ev := &DropTask{Index: rapid.IntRange(-1, p.n.tasks).Draw(t, "task")}
	if list := p.q.SetAsideTasks(0); len(list) > 0 {
		ev.Index = rapid.SampledFrom(list).Draw(t, "aside")
	}
	got, want := p.apply(ev), p.n.drop(ev)
	if (got.Err == nil) != want {
		p.Fatalf("drop of task %d: %v, expected success: %v", ev.Index, got.Err, want)
	}
}

// pauseOrResume resumes more often than it pauses, so that tasks are dispatched.
func (p *pair) pauseOrResume(t *rapid.T) {
	var ev Event = &Resume{}
	resume := rapid.IntRange(0, 3).Draw(t, "resume") > 0
	if !resume {
		ev = &Pause{Reason: "a test"}
	}
	got, want := p.apply(ev), p.n.pause(resume)
	if (got.Err == nil) != want {
		p.Fatalf("%T: %v, expected success: %v", ev, got.Err, want)
	}
}

func (p *pair) drain(t *rapid.T) {
	ev := &Drain{ID: rapid.SampledFrom([]string{"a", "b", "c", "d", "1:1", "nobody"}).Draw(t, "id")}
	got, want := p.apply(ev), p.n.drain(ev)
	if (got.Err == nil) != want {
		p.Fatalf("drain %q: %v, expected success: %v", ev.ID, got.Err, want)
	}
}

func (p *pair) saveModel(t *rapid.T) {
	c := p.client(t)
	ev := &SaveModel{c.ordinal, c.incarnation, 2000}
	p.agree("save model", p.apply(ev), p.n.saveModel(ev))
}

// commit stores the whole output of the queue, or nothing.
func (p *pair) commit() {
	p.q.Touch()
	f := p.q.Ready()
	snapshot := p.q.Snapshot(3, 4)
	var b bytes.Buffer
	if err := gob.NewEncoder(&b).Encode(snapshot); err != nil {
		p.Fatalf("encode: %v", err)
	}
	p.roster = maps.Clone(p.roster)
	for _, w := range f.Writes {
		id, ok := strings.CutPrefix(w.Key, "/trainers/")
		switch {
		case !ok:
		case w.Delete:
			delete(p.roster, id)
		default:
			p.roster[id] = w.Value
		}
	}
	p.stored, p.naive = b.Bytes(), p.n.clone()
	if err := p.ledger.Add(p.q.Commit(), f.Entries); err != nil {
		p.Fatalf("ledger of commit %d: %v", p.q.Commit(), err)
	}
	if err := p.ledger.CrossCheck(snapshot); err != nil {
		p.Fatalf("ledger against state: %v", err)
	}
}

// restart replaces the queue with a queue of the stored state: in a new term, or in the same term after a refused
// commit.
func (p *pair) restart(sameTerm bool) {
	var s Snapshot
	if err := gob.NewDecoder(bytes.NewReader(p.stored)).Decode(&s); err != nil {
		p.Fatalf("decode: %v", err)
	}
	q, err := Restore(&s, p.roster, []*Table{p.table}, p.opt)
	if err != nil {
		p.Fatalf("restore: %v", err)
	}
	before := p.n
	p.n = p.naive.clone()
	if sameTerm {
		q.Continue(p.q)
		p.n.restart(before)
	} else {
		p.plain = nil
		p.n.restart(nil)
	}
	p.q = q
	p.lastJoin = 0
	for _, t := range p.n.trainers {
		p.lastJoin = max(p.lastJoin, t.incarnation)
	}
	// Dispatches since the last commit were never answered: an answer waits for its commit.
	known := func(tok Token) bool {
		pass := p.n.passOf(tok.Pass)
		return pass == nil && tok.Pass <= p.n.pass || pass != nil && tok.Attempt < pass.at[tok.Position].next
	}
	p.tokens = slices.DeleteFunc(p.tokens, func(tok Token) bool { return !known(tok) })
	p.joined = slices.DeleteFunc(p.joined, func(c *client) bool { return c.ordinal >= p.n.ordinal })
	p.plain = slices.DeleteFunc(p.plain, func(c *plainClient) bool { return c.ordinal >= p.n.ordinal })
	for _, c := range p.joined {
		c.held = slices.DeleteFunc(c.held, func(tok Token) bool { return !known(tok) })
	}
}

func (p *pair) compare() {
	if p.q.status != p.n.status {
		p.Fatalf("status %v (%s), expected %v", p.q.status, p.q.reason, p.n.status)
	}
	for key, times := range p.n.counted {
		if times > 1 {
			p.Fatalf("pass %d counted task %d %d times", key[0], key[1], times)
		}
	}
	if got, want := p.q.SetAsideTasks(0), slices.Sorted(maps.Keys(p.n.skipped)); !slices.Equal(got, want) {
		p.Fatalf("set aside: %v, expected %v", got, want)
	}
	for index := range p.n.skipped {
		if got, want := p.q.Dropped(0, index), p.n.dropped[index]; got != want {
			p.Fatalf("task %d dropped: %v, expected %v", index, got, want)
		}
	}
	if len(p.n.open) > 0 {
		got, want := p.q.TaskQueues(0), p.n.view()
		strip := func(v *TaskQueues) {
			for _, list := range [][]TaskEntry{v.Todo, v.Done} {
				for i := range list {
					list[i].Task.Chunks = nil
				}
			}
			for i, e := range v.Pending {
				e.Task.Chunks = nil
				v.Pending[i] = e
			}
		}
		strip(&got)
		if !reflect.DeepEqual(got, want) {
			p.Fatalf("literal queues:\n got      %+v\n expected %+v", got, want)
		}
	}
	if got, want := p.q.sets[0].average, p.n.average; got != want {
		p.Fatalf("average %d µs, expected %d", got, want)
	}
	p.comparePending()
	p.compareTrainers()
	if live := len(p.q.sets[0].live) - p.q.sets[0].holes; live != len(p.q.sets[0].byKey) || live > p.n.tasks*len(p.n.open) {
		p.Fatalf("%d live entries, %d in the map", live, len(p.q.sets[0].byKey))
	}
}

// comparePending compares the dispatched tasks of all open passes, holder by holder.
func (p *pair) comparePending() {
	got := map[naivePlace][]naiveHolder{}
	for _, e := range p.q.sets[0].byKey {
		list := []naiveHolder{}
		for _, h := range e.holders[:e.holderCount] {
			list = append(list, naiveHolder{h.trainer.ordinal, h.attempt, h.request, h.start, h.soft})
		}
		if len(list) > 0 {
			got[naivePlace{e.pass, e.position}] = list
		}
	}
	want := map[naivePlace][]naiveHolder{}
	for _, pass := range p.n.open {
		for position, t := range pass.at {
			if len(t.holders) > 0 {
				want[naivePlace{pass.pass, position}] = t.holders
			}
		}
	}
	if !reflect.DeepEqual(got, want) {
		p.Fatalf("pending:\n got      %+v\n expected %+v", got, want)
	}
	for _, pass := range p.n.open {
		for position, t := range pass.at {
			e := p.q.sets[0].byKey[liveKey{pass.pass, position}]
			if e != nil && (e.failures != t.failures || e.losses != t.losses || e.lost != t.lost || e.next != t.next) {
				p.Fatalf("pass %d position %d: %+v, expected %+v", pass.pass, position, e, t)
			}
		}
	}
}

func (p *pair) compareTrainers() {
	if len(p.q.trainers) != len(p.n.trainers) {
		p.Fatalf("%d trainers, expected %d: %+v", len(p.q.trainers), len(p.n.trainers), p.n.trainers)
	}
	for _, want := range p.n.trainers {
		t := p.q.trainers[want.ordinal]
		if t == nil {
			p.Fatalf("trainer %d is gone", want.ordinal)
		}
		got := naiveTrainer{t.ordinal, t.incarnation, t.id, t.plain, t.finished, t.charged, t.draining, t.gone, want.window, want.nameless, t.seen, t.lostAt, nil, nil}
		for _, e := range t.holds {
			got.holds = append(got.holds, naivePlace{e.pass, e.position})
		}
		if len(got.holds) == 0 && len(want.holds) == 0 {
			got.holds, want.holds = nil, nil
		}
		for _, l := range t.late {
			got.late = append(got.late, naiveLate{l.token, l.index, l.start, l.observed})
		}
		if len(got.late) == 0 && len(want.late) == 0 {
			got.late, want.late = nil, nil
		}
		if !reflect.DeepEqual(got, want) {
			p.Fatalf("trainer:\n got      %+v\n expected %+v", got, want)
		}
	}
}

// checkLedger compares the report of the ledger with the counts of the naive queue.
func (p *pair) checkLedger() {
	for _, r := range p.ledger.Report() {
		counted := 0
		for key := range p.n.counted {
			if key[0] == int(r.Pass) {
				counted++
			}
		}
		if r.CountedTwice != 0 || r.Missing != 0 || r.CountedOnce != counted || r.Tasks != p.n.tasks {
			p.Fatalf("ledger: %+v, expected %d counted once", r, counted)
		}
		if p.n.passOf(r.Pass) == nil && r.CountedOnce+r.SetAside != r.Tasks {
			p.Fatalf("ledger: closed pass %+v", r)
		}
	}
}
