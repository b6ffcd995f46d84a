package taskqueue

import (
	"bytes"
	"encoding/gob"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write the expected output of scenarios and the golden files")

// TestScenarios plays the files under testdata/scenarios: blocks of one command, a line of dashes, the expected
// answer and the full state.
//
//	new tasks=N [passes=N] [shuffle] [rolling] [speculate] [max-failures=N] [max-set-aside=N] [losses-ignored] [explicit] [cuts] [max-uncommitted=N]
//	join NAME [window=N]           a session; the same name again is its next incarnation
//	ask NAME                       the next request of a well-behaved client that wants a task
//	finish NAME TOKEN... [want] [step=N]
//	                               TOKEN is pass/position.attempt, with an epoch in front when not 1: 2:1/0.1
//	fail NAME TOKEN TEXT           a task that could not be trained
//	again NAME                     the last request once more
//	request NAME [seq=N] [ack=N] [held=T,T] [want] [finished=T,T]
//	heartbeat NAME [TOKEN...] [held=T,T]
//	                               progress on these; tasks to stop among the held ones
//	time DURATION [silent=NAME,NAME] [moving=NAME:TOKEN]
//	                               in steps of a second and ticks, with a heartbeat of each
//	                               client but the silent ones, the moving one with progress
//	leave|died|disconnect|save NAME     |  undelivered NAME TOKEN
//	plain CONN [index=N] [token=T] [error=TEXT] [nowant]
//	close CONN                     the connection is gone
//	retry INDEX | drop INDEX | pause [REASON] | resume | drain NAME | stop NAME
//	                               commands of an operator
//	flushed NAME STEP [gen=N] [TOKEN=RECORDS...]
//	step NAME STEP [gen=N]         a member, or the master (-), commits a step
//	rollback NAME STEP gen=N       a member, or the master (-), rolls back to a step
//	laststep NAME
//	cutbegin STEP | cutready STEP | cutrelease | watch NAME
//	commit | restart | refused     store; begin a new term from the stored state; reload the stored state in the same term
//	queues                         the literal queues
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/scenarios/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			have, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			s := &scenario{T: t, names: map[string]*client{}, conns: map[string]*plainClient{}}
			var out strings.Builder
			for _, block := range strings.Split(strings.TrimRight(string(have), "\n"), "\n\n") {
				out.WriteString(s.play(block) + "\n\n")
			}
			got := strings.TrimRight(out.String(), "\n") + "\n"
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			diff(t, file, string(have), got)
		})
	}
}

// diff fails with the first lines that differ.
func diff(t *testing.T, file, want, got string) {
	t.Helper()
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range max(len(w), len(g)) {
		a, b := "(end)", "(end)"
		if i < len(w) {
			a = w[i]
		}
		if i < len(g) {
			b = g[i]
		}
		if a != b {
			t.Fatalf("%s:%d: expected\n\t%s\nfound\n\t%s\nall of it:\n%s", file, i+1, a, b, got)
		}
	}
}

type scenario struct {
	*testing.T
	q      *Queue
	now    Clock
	opt    Options
	table  *Table
	names  map[string]*client
	conns  map[string]*plainClient
	stored []byte
	roster map[string][]byte
	ledger *Verifier
}

// play runs the command of one block and returns the block with the actual result. Comments precede the command.
func (s *scenario) play(block string) string {
	input, _, _ := strings.Cut(block, "\n----")
	lines := strings.Split(input, "\n")
	command := lines[len(lines)-1]
	if strings.HasPrefix(command, "#") {
		return block
	}
	word, rest, _ := strings.Cut(command, " ")
	out := s.run(word, strings.Fields(rest))
	if word != "queues" {
		out += s.state()
	}
	return input + "\n----\n" + strings.TrimRight(out, "\n")
}

func (s *scenario) run(word string, args []string) string {
	options := map[string]string{}
	for _, a := range args {
		key, value, _ := strings.Cut(a, "=")
		options[key] = value
	}
	number := func(key string) int {
		n, err := strconv.Atoi(options[key])
		if err != nil && options[key] != "" {
			s.Fatalf("%s: %v", word, err)
		}
		return n
	}
	_, want := options["want"]
	switch word {
	case "new":
		s.start(options, number)
		return ""
	case "join":
		a := s.q.Apply(s.now, &Join{ID: args[0], Address: args[0] + ":80", Window: number("window")})
		s.names[args[0]] = &client{id: args[0], ordinal: a.Ordinal, incarnation: a.Incarnation, epoch: s.q.Epoch()}
		return fmt.Sprintf("ordinal %d, incarnation %#x\n", a.Ordinal, a.Incarnation)
	case "ask":
		return s.next(args[0], nil, true)
	case "finish":
		var results []Result
		for _, tok := range args[1:] {
			if tok != "want" && !strings.HasPrefix(tok, "step=") {
				results = append(results, Result{Token: s.token(tok), Step: uint64(number("step"))})
			}
		}
		return s.next(args[0], results, want)
	case "fail":
		return s.next(args[0], []Result{{Token: s.token(args[1]), Error: strings.Join(args[2:], " ")}}, false)
	case "again":
		c := s.names[args[0]]
		return s.answer(c, s.q.Apply(s.now, c.sent[len(c.sent)-1]))
	case "request":
		c := s.names[args[0]]
		ev := &Request{Trainer: c.ordinal, Incarnation: c.incarnation, Seq: uint64(number("seq")), Ack: uint64(number("ack")), Want: want, Held: s.tokens(options["held"])}
		for _, tok := range s.tokens(options["finished"]) {
			ev.Finished = append(ev.Finished, Result{Token: tok})
		}
		c.sent = append(c.sent, ev)
		return s.answer(c, s.q.Apply(s.now, ev))
	case "flushed", "step", "rollback", "laststep":
		return s.steps(word, args, uint64(number("gen")))
	case "cutbegin", "cutready", "cutrelease", "watch":
		return s.cut(word, args)
	case "heartbeat":
		c := s.names[args[0]]
		moving := slices.DeleteFunc(slices.Clone(args[1:]), func(a string) bool { return strings.HasPrefix(a, "held=") })
		return s.answer(c, s.q.Apply(s.now, &Heartbeat{Trainer: c.ordinal, Incarnation: c.incarnation, Moving: s.tokens(strings.Join(moving, ",")), Held: s.tokens(options["held"])}))
	case "leave":
		c := s.names[args[0]]
		return s.answer(c, s.q.Apply(s.now, &Leave{c.ordinal, c.incarnation}))
	case "died":
		c := s.names[args[0]]
		return s.answer(c, s.q.Apply(s.now, &Died{c.ordinal, c.incarnation}))
	case "disconnect":
		c := s.names[args[0]]
		return s.answer(c, s.q.Apply(s.now, &Disconnected{c.ordinal, c.incarnation}))
	case "gone":
		return s.answer(s.names[args[0]], s.q.Apply(s.now, &Gone{ID: args[0], Charge: len(args) > 1 && args[1] == "charge"}))
	case "save":
		c := s.names[args[0]]
		return fmt.Sprintf("granted: %v\n", s.q.Apply(s.now, &SaveModel{c.ordinal, c.incarnation, 60_000}).Granted)
	case "undelivered":
		c := s.names[args[0]]
		return s.answer(c, s.q.Apply(s.now, &Undelivered{c.ordinal, c.incarnation, s.token(args[1])}))
	case "plain":
		return s.plain(args[0], options, number)
	case "close":
		c := s.conns[args[0]]
		delete(s.conns, args[0])
		s.q.Apply(s.now, &Disconnected{c.ordinal, c.incarnation})
		return ""
	case "time":
		d, err := time.ParseDuration(args[0])
		if err != nil {
			s.Fatal(err)
		}
		s.pass(d, strings.Split(options["silent"], ","), options["moving"])
		return ""
	case "retry":
		index, err := strconv.Atoi(args[0])
		if err != nil {
			s.Fatal(err)
		}
		return s.answer(nil, s.q.Apply(s.now, &RetryAside{Index: index}))
	case "drop":
		index, err := strconv.Atoi(args[0])
		if err != nil {
			s.Fatal(err)
		}
		return s.answer(nil, s.q.Apply(s.now, &DropTask{Index: index}))
	case "pause":
		return s.answer(nil, s.q.Apply(s.now, &Pause{Reason: strings.Join(args, " ")}))
	case "resume":
		return s.answer(nil, s.q.Apply(s.now, &Resume{}))
	case "drain":
		return s.answer(nil, s.q.Apply(s.now, &Drain{ID: args[0]}))
	case "stop":
		return s.answer(nil, s.q.Apply(s.now, &StopTasks{ID: args[0]}))
	case "commit":
		return s.commit()
	case "restart", "refused":
		return s.restore(word == "refused")
	case "queues":
		return s.queues()
	}
	s.Fatalf("unknown command %q", word)
	return ""
}

func (s *scenario) start(options map[string]string, number func(string) int) {
	has := func(key string) bool { _, ok := options[key]; return ok }
	s.opt = Options{
		Passes: number("passes"), MaxFailures: number("max-failures"), MaxSetAside: number("max-set-aside"),
		Rolling: has("rolling"), Speculate: has("speculate"), LossesIgnored: has("losses-ignored"),
		ExplicitCommit: has("explicit"), Cuts: has("cuts"), MaxUncommitted: number("max-uncommitted"),
	}
	s.names, s.conns = map[string]*client{}, map[string]*plainClient{}
	s.now, s.roster, s.ledger = 1, map[string][]byte{}, NewVerifier()
	s.table = tableOf(s, number("tasks"))
	s.q = New("job", [16]byte{1}, 7, s.opt)
	s.q.Apply(s.now, &Report{SetSpec: SetSpec{Shuffle: has("shuffle"), Seed: 42}, Digest: [32]byte{9}, ReportID: "r", Table: s.table})
	s.commit()
}

func (s *scenario) pass(d time.Duration, silent []string, moving string) {
	mover, tok, _ := strings.Cut(moving, ":")
	for end := s.now.Add(d); s.now < end; {
		s.now = min(end, s.now.Add(time.Second))
		s.q.Apply(s.now, &Tick{})
		for _, name := range slices.Sorted(maps.Keys(s.names)) {
			if slices.Contains(silent, name) {
				continue
			}
			ev := &Heartbeat{Trainer: s.names[name].ordinal, Incarnation: s.names[name].incarnation}
			if name == mover {
				ev.Moving = s.tokens(tok)
			}
			s.q.Apply(s.now, ev)
		}
	}
}

// next sends the request of a well-behaved client: it acknowledges all earlier answers and lists its tasks.
func (s *scenario) next(name string, finished []Result, want bool) string {
	c := s.names[name]
	c.seq++
	for _, r := range finished {
		c.held = slices.DeleteFunc(c.held, func(t Token) bool { return t == r.Token })
	}
	ev := &Request{Trainer: c.ordinal, Incarnation: c.incarnation, Seq: c.seq, Ack: c.seq, Held: slices.Clone(c.held), Finished: finished, Want: want, Epoch: c.epoch}
	c.sent = append(c.sent, ev)
	return s.answer(c, s.q.Apply(s.now, ev))
}

func (s *scenario) answer(c *client, a Answer) string {
	var parts []string
	for _, f := range a.Finishes {
		parts = append(parts, f.String())
	}
	switch a.Kind {
	case AnswerTask:
		parts = append(parts, fmt.Sprintf("task %d as %s", a.Index, taskName(a.Token.Pass, a.Token.Position, a.Token.Attempt)))
		if a.Base > 0 {
			parts = append(parts, fmt.Sprintf("from record %d", a.Base))
		}
		if c != nil && !slices.Contains(c.held, a.Token) {
			c.held = append(c.held, a.Token)
		}
	case AnswerWait:
		parts = append(parts, a.WaitFor.String())
	case AnswerStep, AnswerRolledBack:
		if c != nil && c.epoch != a.Place.Epoch { // the client drops its tasks
			c.epoch, c.held = a.Place.Epoch, nil
		}
		text := fmt.Sprintf("step %d, generation %d, epoch %d, %d uncommitted", a.Place.Step, a.Place.Generation, a.Place.Epoch, a.Place.Uncommitted)
		if a.Kind == AnswerRolledBack {
			text = "rolled back: " + text
		}
		parts = append(parts, text)
	case AnswerEnded:
		parts = append(parts, "ended")
	case AnswerFailed:
		parts = append(parts, "failed")
	case AnswerRejoin:
		parts = append(parts, "rejoin")
	case AnswerDrained:
		parts = append(parts, "drained")
	}
	for _, tok := range a.Stops {
		parts = append(parts, "stop "+taskName(tok.Pass, tok.Position, tok.Attempt))
	}
	if a.Err != nil {
		parts = append(parts, "error: "+a.Err.Error())
	}
	if len(parts) == 0 {
		return ""
	}
	return strings.Join(parts, ", ") + "\n"
}

// steps plays an event of explicit commits.
func (s *scenario) steps(word string, args []string, generation uint64) string {
	c := s.names[args[0]]
	if c == nil {
		c = &client{} // the master
	}
	if word == "laststep" {
		return s.answer(c, s.q.Apply(s.now, &LastStep{Trainer: c.ordinal, Incarnation: c.incarnation}))
	}
	step, err := strconv.ParseUint(args[1], 10, 64)
	if err != nil {
		s.Fatal(err)
	}
	switch word {
	case "step":
		return s.answer(c, s.q.Apply(s.now, &StepCommit{Trainer: c.ordinal, Incarnation: c.incarnation, Generation: generation, Step: step}))
	case "rollback":
		return s.answer(c, s.q.Apply(s.now, &Rollback{Trainer: c.ordinal, Incarnation: c.incarnation, Generation: generation, Step: step}))
	}
	ev := &StepFlushed{Trainer: c.ordinal, Incarnation: c.incarnation, Generation: generation, Step: step}
	for _, text := range args[2:] {
		token, records, _ := strings.Cut(text, "=")
		if token == "gen" {
			continue
		}
		n, err := strconv.ParseInt(records, 10, 64)
		if err != nil {
			s.Fatal(err)
		}
		ev.Positions = append(ev.Positions, TaskPosition{s.token(token), n})
	}
	return s.answer(c, s.q.Apply(s.now, ev))
}

// cut plays an event of the leader's cuts.
func (s *scenario) cut(word string, args []string) string {
	switch word {
	case "watch":
		c := s.names[args[0]]
		return s.answer(c, s.q.Apply(s.now, &CutWatch{c.ordinal, c.incarnation}))
	case "cutrelease":
		return s.answer(nil, s.q.Apply(s.now, &CutRelease{}))
	}
	step, err := strconv.ParseUint(args[0], 10, 64)
	if err != nil {
		s.Fatal(err)
	}
	if word == "cutready" {
		return s.answer(nil, s.q.Apply(s.now, &CutReady{step}))
	}
	return s.answer(nil, s.q.Apply(s.now, &CutBegin{step}))
}

func (s *scenario) plain(name string, options map[string]string, number func(string) int) string {
	c := s.conns[name]
	if c == nil {
		c = &plainClient{name: name}
		s.conns[name] = c
	}
	_, finished := options["index"]
	_, nowant := options["nowant"]
	ev := &PlainAsk{
		Trainer: c.ordinal, Incarnation: c.incarnation, Connection: name, Finished: finished, Index: number("index"), Result: Result{Error: options["error"]}, Want: !nowant,
	}
	if text := options["token"]; text != "" {
		ev.Token = s.token(text)
	}
	a := s.q.Apply(s.now, ev)
	c.ordinal, c.incarnation = a.Ordinal, a.Incarnation
	return s.answer(nil, a)
}

func (s *scenario) tokens(list string) []Token {
	var tokens []Token
	for _, text := range strings.Split(list, ",") {
		if text != "" {
			tokens = append(tokens, s.token(text))
		}
	}
	return tokens
}

func (s *scenario) token(text string) Token {
	tok := Token{Epoch: 1}
	if epoch, rest, ok := strings.Cut(text, ":"); ok {
		n, err := strconv.ParseUint(epoch, 10, 32)
		if err != nil {
			s.Fatalf("token %q: %v", text, err)
		}
		tok.Epoch, text = uint32(n), rest
	}
	if _, err := fmt.Sscanf(text, "%d/%d.%d", &tok.Pass, &tok.Position, &tok.Attempt); err != nil {
		s.Fatalf("token %q: %v", text, err)
	}
	return tok
}

func taskName(p Pass, position int, a Attempt) string { return fmt.Sprintf("%d/%d.%d", p, position, a) }

// commit stores the queue, and lists the keys and events of the commit.
func (s *scenario) commit() string {
	f := s.q.Ready()
	snapshot := s.q.Snapshot(3, 4)
	var b bytes.Buffer
	if err := gob.NewEncoder(&b).Encode(snapshot); err != nil {
		s.Fatal(err)
	}
	s.stored = b.Bytes()
	var out strings.Builder
	for _, w := range f.Writes {
		if id, ok := strings.CutPrefix(w.Key, "/trainers/"); ok {
			if s.roster[id] = w.Value; w.Delete {
				delete(s.roster, id)
			}
		}
		if w.Delete {
			fmt.Fprintf(&out, "delete %s\n", w.Key)
		} else {
			fmt.Fprintf(&out, "put %s %s\n", w.Key, w.Value)
		}
	}
	if err := s.ledger.Add(s.q.Commit(), f.Entries); err != nil {
		s.Fatal(err)
	}
	if err := s.ledger.CrossCheck(snapshot); err != nil {
		s.Fatal(err)
	}
	for _, r := range s.ledger.Report() {
		line := fmt.Sprintf("verify: %+v\n", r)
		out.WriteString(strings.Replace(line, " Dropped:0", "", 1)) // printed only if not 0
	}
	return out.String()
}

func (s *scenario) restore(sameTerm bool) string {
	var snapshot Snapshot
	if err := gob.NewDecoder(bytes.NewReader(s.stored)).Decode(&snapshot); err != nil {
		s.Fatal(err)
	}
	q, err := Restore(&snapshot, s.roster, []*Table{s.table}, s.opt)
	if err != nil {
		s.Fatal(err)
	}
	if sameTerm {
		q.Continue(s.q)
	}
	s.q = q
	return ""
}

// state prints the full state.
func (s *scenario) state() string {
	var out strings.Builder
	status, reason := s.q.Status()
	fmt.Fprintf(&out, "%v at %v", status, time.Duration(s.q.Clock())*time.Millisecond)
	if reason != "" {
		fmt.Fprintf(&out, ": %s", reason)
	}
	out.WriteByte('\n')
	for _, set := range s.q.sets {
		for _, p := range set.open {
			fmt.Fprintf(&out, "pass %d: %d of %d counted, %d dispatched\n", p.pass, p.counted, set.tasks, set.dispatched(p.pass))
		}
		set.compact()
		for _, e := range set.live {
			fmt.Fprintf(&out, "  %d/%d task %d:", e.pass, e.position, set.orderOf(e.pass).index(e.position))
			if e.holderCount == 0 {
				fmt.Fprintf(&out, " retry as .%d", e.next)
			}
			if e.base > 0 {
				fmt.Fprintf(&out, " from %d", e.base)
			}
			for _, h := range e.holders[:e.holderCount] {
				fmt.Fprintf(&out, " %s .%d", h.trainer.id, h.attempt)
				if h.start == 0 {
					out.WriteString(" prefetched")
				} else {
					fmt.Fprintf(&out, " until %v", time.Duration(h.soft)*time.Millisecond)
				}
			}
			if e.failures+e.losses > 0 {
				fmt.Fprintf(&out, " (%d failures, %d losses)", e.failures, e.losses)
			}
			if e.lost {
				out.WriteString(" lost before")
			}
			out.WriteByte('\n')
		}
		for _, a := range set.uncommitted {
			fmt.Fprintf(&out, "  %d/%d task %d: in step %d\n", a.pass, a.position, set.orderOf(a.pass).index(a.position), a.step)
		}
		for _, a := range set.sortedAside() {
			fmt.Fprintf(&out, "  task %d set aside in pass %d: %d failures, %d losses", a.index, a.pass, a.failures, a.losses)
			if a.spared {
				fmt.Fprintf(&out, "; goes on in pass %d", a.pass+1)
			}
			if a.dropped {
				out.WriteString("; dropped")
			}
			out.WriteByte('\n')
		}
	}
	for _, t := range s.q.sortedTrainers() {
		fmt.Fprintf(&out, "%s (%d)", t.id, t.ordinal)
		for _, f := range []struct {
			set  bool
			word string
		}{{t.finished, "finished"}, {t.charged, "charged"}, {t.draining, "draining"}, {t.gone, "gone"}} {
			if f.set {
				out.WriteString(" " + f.word)
			}
		}
		if t.lostAt != 0 {
			fmt.Fprintf(&out, " lost at %v", time.Duration(t.lostAt)*time.Millisecond)
		}
		for _, e := range t.holds {
			fmt.Fprintf(&out, " %s", taskName(e.pass, e.position, e.holderOf(t).attempt))
		}
		out.WriteByte('\n')
	}
	return out.String()
}

func (s *scenario) queues() string {
	v := s.q.TaskQueues(0)
	var out strings.Builder
	entry := func(e TaskEntry) {
		fmt.Fprintf(&out, "  task %d at %s: %d timeouts, chunk %d at %d\n", e.Task.Index, taskName(e.Task.Token.Pass, e.Task.Token.Position, e.Task.Token.Attempt), e.NumTimeout, e.Task.Chunks[0].Idx, e.Task.Chunks[0].Index.Offset)
	}
	out.WriteString("todo\n")
	for _, e := range v.Todo {
		entry(e)
	}
	out.WriteString("pending\n")
	for index := range s.table.Tasks() {
		if e, ok := v.Pending[index]; ok {
			entry(e)
		}
	}
	out.WriteString("done\n")
	for _, e := range v.Done {
		entry(e)
	}
	return out.String()
}
