package taskqueue

import (
	"bytes"
	"encoding/gob"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// goldenQueue returns a queue with a value in each field of the state:
//
// - two open passes, with running and prefetched tasks
// - tasks with no holder, one holder and two holders
// - failures and losses
// - a task set aside in both passes, another spared in the newer pass, and a dropped task
// - a saver, and a connection without a session
// - a restore from a backup
// - two learning rates
func goldenQueue(t testing.TB) *Queue {
	t.Helper()
	q := New("golden", [16]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, 0xc1a5, goldenOptions)
	q.restores = 1
	q.rates, q.rateNumber = []RateChange{{1, 3, 0.5, 0.05}, {3, 7, 0.25, 0.025}}, 3
	now := Clock(1000)
	q.Apply(now, &Report{SetSpec: SetSpec{Shuffle: true, Seed: 42}, Digest: [32]byte{1, 2, 3}, ReportID: "report-1", Parts: 2, PartsDigest: [32]byte{4, 5}, Table: tableOf(t, 8)})
	q.Ready()
	c := map[string]*client{}
	join := func(id string) {
		a := q.Apply(now, &Join{ID: id, Address: "10.0.0.1:80"})
		c[id] = &client{ordinal: a.Ordinal, incarnation: a.Incarnation}
	}
	send := func(id string, want bool, results ...Result) Token {
		c[id].seq++
		now += 100
		a := q.Apply(now, &Request{Trainer: c[id].ordinal, Incarnation: c[id].incarnation, Seq: c[id].seq, Finished: results, Want: want})
		if want && a.Kind != AnswerTask {
			t.Fatalf("golden state: %+v", a)
		}
		return a.Token
	}
	ask := func(id string) Token { return send(id, true) }
	finish := func(id string, tok Token) { send(id, false, Result{Token: tok}) }
	fail := func(id string, tok Token) { send(id, false, Result{Token: tok, Error: "damaged chunk"}) }
	for _, id := range []string{"a", "b", "c"} {
		join(id)
	}
	spared := ask("a")
	ask("a")
	for range 3 { // set aside, from pass 1 on
		fail("b", ask("b"))
	}
	finish("c", ask("c"))
	ask("c")
	join("c") // it was lost
	ask("c")
	finish("b", ask("b"))
	charged := ask("b")
	for q.sets[0].pass < 2 || q.sets[0].cursor < 8 {
		finish("b", ask("b"))
	}
	q.Ready()
	fail("a", spared)
	for range 2 {
		fail("a", ask("a"))
	}
	q.Apply(now, &PlainAsk{Connection: "10.0.0.9:4711", Want: true}) // a second attempt of the slowest task
	fail("b", charged)
	q.Apply(now, &SaveModel{c["b"].ordinal, c["b"].incarnation, 60_000})
	q.Apply(now, &DropTask{Set: 0, Index: 6})
	return q
}

// goldenSets adds more datasets: one for training with a weight and its own passes, one for evaluation with an open round, and an online dataset.
func goldenSets(t testing.TB, q *Queue) {
	t.Helper()
	now := q.Clock()
	for i, spec := range []SetSpec{{Name: "books", Passes: 7, Weight: 3}, {Name: "held-out", Kind: Evaluation}} {
		if a := q.Apply(now, &Report{SetSpec: spec, Digest: [32]byte{7}, ReportID: "report-" + spec.Name, Table: tableOf(t, 8)}); a.Err != nil || a.Set != i+1 {
			t.Fatalf("report: %+v", a)
		}
	}
	q.Apply(now, &BeginRound{Set: 2})
	for _, accepts := range []Kinds{0, KindsOf(Evaluation)} {
		if a := q.Apply(now, &PlainAsk{Connection: fmt.Sprint("10.0.0.9:", accepts), Want: true, Accepts: accepts}); a.Kind != AnswerTask || a.Set == 0 {
			t.Fatalf("golden state: %+v", a)
		}
	}
	q.Apply(now, &Report{SetSpec: SetSpec{Name: "clicks", Shuffle: true, Online: true}, Digest: [32]byte{8}, ReportID: "report-clicks", Table: NewTable(0)})
	if a := q.Apply(now, &AppendSegment{Name: "clicks", Parts: 1, PartsDigest: [32]byte{9}, Table: tableOf(t, 8)}); a.Err != nil {
		t.Fatal(a.Err)
	}
}

var goldenOptions = Options{MaxFailures: 2, Rolling: true, Speculate: true, Passes: 2}

func (q *Queue) encodedRoster() map[string][]byte {
	roster := map[string][]byte{}
	for _, t := range q.trainers {
		if q.byID[t.id] == t {
			roster[t.id] = t.encode()
		}
	}
	return roster
}

// A state of every earlier format can be upgraded. Its fields are those in its golden file, and the job continues.
// The files of older formats are never written again.
func TestGoldenSnapshots(t *testing.T) {
	for format := 1; format <= Format; format++ {
		t.Run(fmt.Sprint("format ", format), func(t *testing.T) {
			name := fmt.Sprintf("format-%d.", format)
			if format == Format {
				writeGolden(t, name)
			}
			var s Snapshot
			if err := gob.NewDecoder(bytes.NewReader(undump(t, readGolden(t, name+"gob.hex")))).Decode(&s); err != nil {
				t.Fatal(err)
			}
			if s.Format != format || s.LockRevision != 77 || s.Nonce != 0xabcdef {
				t.Fatalf("format %d, lock revision %d, nonce %x", s.Format, s.LockRevision, s.Nonce)
			}
			if from, err := s.Upgrade(); err != nil || from != format || s.Format != Format {
				t.Fatalf("upgraded from format %d to %d, %v", from, s.Format, err)
			}
			roster := map[string][]byte{}
			for line := range strings.Lines(readGolden(t, name+"roster.txt")) {
				id, value, _ := strings.Cut(strings.TrimSpace(line), " ")
				roster[id] = []byte(value)
			}
			tables := make([]*Table, len(s.Sets))
			for i := range tables {
				tables[i] = tableOf(t, 8)
			}
			restored, err := Restore(&s, roster, tables, goldenOptions)
			if err != nil {
				t.Fatal(err)
			}
			diff(t, name+"state.txt", readGolden(t, name+"state.txt"), describe(restored))
			// gob numbers types by their first use in a process, so only decoded values are comparable.
			if fresh := restored.Snapshot(77, 0xabcdef); !reflect.DeepEqual(*fresh, s) {
				t.Fatalf("stored again:\n got      %+v\n expected %+v", *fresh, s)
			}
			exercise(t, restored)
		})
	}
}

// writeGolden compares the output of this build with the golden file, or writes the file with -update.
func writeGolden(t *testing.T, name string) {
	t.Helper()
	q := goldenQueue(t)
	goldenSets(t, q)
	q.Ready()
	set := q.Snapshot(1, 2).Sets[0]
	documented(t, "task_queues.md", set.Live)
	documented(t, "task_queues.md", set.Aside)
	roster := q.encodedRoster()
	var out strings.Builder
	for _, id := range slices.Sorted(maps.Keys(roster)) {
		fmt.Fprintf(&out, "/trainers/%s %s\n", id, roster[id])
	}
	golden(t, name+"roster.txt", out.String())
	golden(t, name+"state.txt", describe(q))
	if *update {
		var b bytes.Buffer
		if err := gob.NewEncoder(&b).Encode(q.Snapshot(77, 0xabcdef)); err != nil {
			t.Fatal(err)
		}
		golden(t, name+"gob.hex", hex.Dump(b.Bytes()))
	}
}

func readGolden(t testing.TB, name string) string {
	t.Helper()
	text, err := os.ReadFile("testdata/golden/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// A failed upgrade, or an unknown format, leaves the snapshot unchanged.
func TestUpgradeRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		change func(s *Snapshot)
		want   error
		words  string
	}{
		"a newer format":             {func(s *Snapshot) { s.Format = Format + 1 }, ErrNewer, fmt.Sprintf("reads up to format %d, found format %d: start a newer master", Format, Format+1)},
		"no format":                  {func(s *Snapshot) { s.Format = 0 }, ErrDamaged, "format 0"},
		"a field of format 2 in 1":   {func(s *Snapshot) { s.Format, s.Restores = 1, 1 }, ErrDamaged, "from format 1: "},
		"a field of format 4 in 3":   {func(s *Snapshot) { s.Format, s.RateNumber = 3, 1 }, ErrDamaged, "from format 3: "},
		"a commit too large for 2":   {func(s *Snapshot) { s.Format, s.Commit = 1, maxCommit+1 }, ErrDamaged, "from format 1: "},
		"less than the first format": {func(s *Snapshot) { s.Format = -1 }, ErrDamaged, "format -1"},
	} {
		t.Run(name, func(t *testing.T) {
			s := goldenQueue(t).Snapshot(1, 2)
			s.Restores = 0
			c.change(s)
			before := *s
			if _, err := s.Upgrade(); !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.words) {
				t.Errorf("expected %v with %q, found %v", c.want, c.words, err)
			}
			if !reflect.DeepEqual(*s, before) {
				t.Error("the state was changed")
			}
		})
	}
}

// documented fails if the page of a format does not show the given bytes.
func documented(t *testing.T, page string, b []byte) {
	t.Helper()
	text, err := os.ReadFile("../docs/formats/" + page)
	if err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("% x", b); !strings.Contains(strings.ReplaceAll(string(text), "  ", " "), want) {
		t.Errorf("docs/formats/%s does not show %s", page, want)
	}
}

// undump is the inverse of hex.Dump.
func undump(t testing.TB, text string) []byte {
	t.Helper()
	var out []byte
	for line := range strings.Lines(text) {
		digits, _, _ := strings.Cut(line[min(8, len(line)-1):], "|")
		b, err := hex.DecodeString(strings.Join(strings.Fields(digits), ""))
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		out = append(out, b...)
	}
	return out
}

// describe prints the stored state of a queue.
func describe(q *Queue) string {
	var out strings.Builder
	fmt.Fprintf(&out, "job %s %x, cluster %x, epoch %d, commit %d, clock %d, next ordinal %d, %v %s, saver %d until %d\n",
		q.job, q.jobID, q.cluster, q.epoch, q.commit, q.clock, q.nextOrdinal, q.status, q.reason, q.saver, q.saverUntil)
	if q.restores > 0 {
		fmt.Fprintf(&out, "restored from a backup: %d times\n", q.restores)
	}
	if len(q.rates) > 0 {
		fmt.Fprintf(&out, "learning rates %+v, %d changes\n", q.rates, q.rateNumber)
	}
	for _, s := range q.sets {
		fmt.Fprintf(&out, "set %d: kind %d, digest %x, report %s of %d parts %x, %d chunks a task, %d chunks, %d tasks, order %d seed %d, pass %d, cursor %d, average %d\n",
			s.id, s.kind, s.digest, s.reportID, s.parts, s.partsDigest, s.chunksPerTask, s.chunks, s.tasks, s.algorithm, s.seed, s.pass, s.cursor, s.average)
		if len(q.sets) > 1 {
			fmt.Fprintf(&out, "  name %s, passes %d, weight %d, credit %d, ended %v\n", s.name, s.passes, s.weight, s.credit, s.ended)
		}
		for _, p := range s.open {
			fmt.Fprintf(&out, "  pass %d: %d counted, sums %d, %d\n", p.pass, p.counted, p.sum1, p.sum2)
		}
		s.compact()
		for _, e := range s.live {
			fmt.Fprintf(&out, "  live %d/%d: %d failures, %d losses, lost %v, next %d\n", e.pass, e.position, e.failures, e.losses, e.lost, e.next)
			for _, h := range e.holders[:e.holderCount] {
				fmt.Fprintf(&out, "    trainer %d, attempt %d, request %d, start %d\n", h.trainer.ordinal, h.attempt, h.request, h.start)
			}
		}
		for _, a := range s.sortedAside() {
			fmt.Fprintf(&out, "  aside %d: pass %d, %d failures, %d losses, next %d, in the newer pass %d, spared %v\n", a.index, a.pass, a.failures, a.losses, a.next, a.nextNewer, a.spared)
			if a.dropped {
				fmt.Fprintf(&out, "    dropped\n")
			}
		}
	}
	return out.String()
}

func TestRestoreRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		change func(s *Snapshot, roster map[string][]byte)
		want   error
	}{
		"another format":              {func(s *Snapshot, _ map[string][]byte) { s.Format = Format - 1 }, ErrDamaged},
		"a commit out of range":       {func(s *Snapshot, _ map[string][]byte) { s.Commit = maxCommit + 1 }, ErrDamaged},
		"no format":                   {func(s *Snapshot, _ map[string][]byte) { s.Format = 0 }, ErrDamaged},
		"a rate without a number":     {func(s *Snapshot, _ map[string][]byte) { s.Rates[0].Number = 0 }, ErrDamaged},
		"a rate of 0":                 {func(s *Snapshot, _ map[string][]byte) { s.Rates[0].Scale = 0 }, ErrDamaged},
		"rates out of order":          {func(s *Snapshot, _ map[string][]byte) { s.Rates[1].From = 3 }, ErrDamaged},
		"another mode":                {func(s *Snapshot, _ map[string][]byte) { s.Mode = 1 }, ErrDamaged},
		"no job id":                   {func(s *Snapshot, _ map[string][]byte) { s.JobID = nil }, ErrDamaged},
		"no clock":                    {func(s *Snapshot, _ map[string][]byte) { s.Clock = 0 }, ErrDamaged},
		"two datasets":                {func(s *Snapshot, _ map[string][]byte) { s.Sets = append(s.Sets, SetSnapshot{}) }, ErrDamaged},
		"an unknown status":           {func(s *Snapshot, _ map[string][]byte) { s.Status = 9 }, ErrDamaged},
		"an unknown order":            {func(s *Snapshot, _ map[string][]byte) { s.Sets[0].Algorithm = 9 }, ErrDamaged},
		"other tasks":                 {func(s *Snapshot, _ map[string][]byte) { s.Sets[0].Tasks++ }, ErrDamaged},
		"a cursor past the end":       {func(s *Snapshot, _ map[string][]byte) { s.Sets[0].Cursor = s.Sets[0].Tasks + 1 }, ErrDamaged},
		"a cursor ahead":              {func(s *Snapshot, _ map[string][]byte) { s.Sets[0].Cursor++ }, ErrDamaged},
		"one finish too few":          {func(s *Snapshot, _ map[string][]byte) { s.Sets[0].Open[0].Counted-- }, ErrDamaged},
		"one finish too many":         {func(s *Snapshot, _ map[string][]byte) { s.Sets[0].Open[1].Counted++ }, ErrDamaged},
		"no live tasks":               {func(s *Snapshot, _ map[string][]byte) { s.Sets[0].Live = []byte{0} }, ErrDamaged},
		"live tasks cut short":        {func(s *Snapshot, _ map[string][]byte) { s.Sets[0].Live = s.Sets[0].Live[:5] }, ErrDamaged},
		"more live than bytes":        {func(s *Snapshot, _ map[string][]byte) { s.Sets[0].Live = []byte{255, 255, 255, 255, 127, 0} }, ErrDamaged},
		"nothing set aside":           {func(s *Snapshot, _ map[string][]byte) { s.Sets[0].Aside = nil }, ErrDamaged},
		"passes out of order":         {func(s *Snapshot, _ map[string][]byte) { slices.Reverse(s.Sets[0].Open) }, ErrDamaged},
		"three open passes":           {func(s *Snapshot, _ map[string][]byte) { s.Sets[0].Open = append(s.Sets[0].Open, OpenPass{Pass: 3}) }, ErrDamaged},
		"next ordinal too low":        {func(s *Snapshot, _ map[string][]byte) { s.NextOrdinal = 1 }, ErrDamaged},
		"a roster entry":              {func(_ *Snapshot, roster map[string][]byte) { roster["a"] = []byte("{") }, ErrDamaged},
		"two trainers of one ordinal": {func(_ *Snapshot, roster map[string][]byte) { roster["z"] = roster["a"] }, ErrDamaged},
		"an entry without a trainer":  {func(_ *Snapshot, roster map[string][]byte) { roster["z"] = []byte(`{}`) }, ErrDamaged},
		"an average out of range":     {func(s *Snapshot, _ map[string][]byte) { s.Sets[0].AverageMicros = 1 << 62 }, ErrDamaged},
		"a short digest":              {func(s *Snapshot, _ map[string][]byte) { s.Sets[0].Digest = nil }, ErrDamaged},
	} {
		t.Run(name, func(t *testing.T) {
			q := goldenQueue(t)
			s, roster := q.Snapshot(1, 2), q.encodedRoster()
			table := tableOf(t, 8)
			if _, err := Restore(s, roster, []*Table{table}, goldenOptions); err != nil {
				t.Fatalf("before the change: %v", err)
			}
			c.change(s, roster)
			if _, err := Restore(s, roster, []*Table{table}, goldenOptions); !errors.Is(err, c.want) {
				t.Fatalf("expected %v, found %v", c.want, err)
			}
		})
	}
}

// FuzzRestore restores damaged columns and numbers. It expects an error or a queue that works: no panic, and no
// memory beyond the size of the input.
func FuzzRestore(f *testing.F) {
	q := goldenQueue(f)
	s := q.Snapshot(1, 2)
	set := s.Sets[0]
	f.Add(set.Live, set.Aside, set.Cursor, set.Tasks, uint32(set.Pass), int64(s.Clock), uint32(s.NextOrdinal), set.AverageMicros, uint8(s.Status))
	f.Add([]byte{1, 1, 0, 0, 0, 0, 1, 1, 1, 0, 0, 1}, []byte{}, 1, 1<<40, uint32(1), int64(1), uint32(3), int64(0), uint8(0))
	roster := q.encodedRoster()
	f.Fuzz(func(t *testing.T, live, aside []byte, cursor, tasks int, pass uint32, clock int64, ordinals uint32, average int64, status uint8) {
		s := *s
		s.Sets = []SetSnapshot{set}
		s.Clock, s.NextOrdinal, s.Status = Clock(clock), Ordinal(ordinals), Status(status)
		d := &s.Sets[0]
		d.Live, d.Aside, d.Cursor, d.Tasks, d.Pass, d.AverageMicros = live, aside, cursor, tasks, Pass(pass), average
		var q *Queue
		for _, trainers := range []map[string][]byte{roster, nil} {
			var err error
			if q, err = Restore(&s, trainers, []*Table{nil}, goldenOptions); err != nil {
				continue
			}
			exercise(t, q)
		}
	})
}

// exercise runs a restored queue until each deadline has expired.
func exercise(t *testing.T, q *Queue) {
	join := q.Apply(q.Clock(), &Join{ID: "fuzz"})
	for i := range 20 {
		a := q.Apply(q.Clock(), &Request{Trainer: join.Ordinal, Incarnation: join.Incarnation, Seq: uint64(i), Ack: uint64(i), Want: true})
		q.Apply(q.Clock(), &Heartbeat{Trainer: join.Ordinal, Incarnation: join.Incarnation, Moving: []Token{a.Token}})
		if i%2 == 0 {
			q.Apply(q.Clock(), &Request{Trainer: join.Ordinal, Incarnation: join.Incarnation, Seq: uint64(i), Finished: []Result{{Token: a.Token}}})
		}
		q.Apply(q.Clock().Add(time.Hour/4), &Tick{})
	}
	q.PendingTasks()
	q.Overview()
	q.Ready()
	if s := q.Snapshot(1, 2); len(s.Sets) != len(q.sets) {
		t.Fatalf("%d datasets", len(s.Sets))
	}
}

// FuzzTokens sends any token with every event that has one.
func FuzzTokens(f *testing.F) {
	f.Add(uint32(1), uint8(0), 0, uint32(1), 3, uint32(1), uint32(1), uint64(0x20000), 3, "x")
	f.Add(uint32(1), uint8(0), 0, uint32(2), -1, uint32(0), uint32(4), uint64(0), -1, "")
	f.Add(uint32(1), uint8(0), -1, uint32(1<<32-1), 1<<62, uint32(1<<32-1), uint32(2), uint64(1)<<63, 1<<62, "")
	f.Fuzz(func(t *testing.T, epoch uint32, kind uint8, dataset int, pass uint32, position int, attempt, trainer uint32, incarnation uint64, index int, text string) {
		q := goldenQueue(t)
		tok := Token{epoch, Kind(kind), dataset, Pass(pass), position, Attempt(attempt)}
		o := Ordinal(trainer)
		if who := q.trainers[o]; who != nil && incarnation%2 == 0 {
			incarnation = who.incarnation
		}
		for _, ev := range []Event{
			&Request{Trainer: o, Incarnation: incarnation, Seq: incarnation, Ack: incarnation, Held: []Token{tok}, Finished: []Result{{Token: tok, Error: text}}, Want: true},
			&Request{Trainer: o, Incarnation: incarnation, Finished: []Result{{Token: tok}, {Token: tok, Error: text}, {Token: tok}}},
			&Heartbeat{Trainer: o, Incarnation: incarnation, Moving: []Token{tok}},
			&Undelivered{o, incarnation, tok},
			&PlainAsk{Trainer: o, Incarnation: incarnation, Connection: text, Finished: true, Index: index, Result: Result{Token: tok, Error: text}, Want: true},
			&PlainAsk{Trainer: o, Incarnation: incarnation, Connection: text, Finished: true, Index: index, Want: true},
			&RetryAside{Set: dataset, Index: index},
			&SaveModel{o, incarnation, Clock(index)},
			&Disconnected{o, incarnation},
			&Leave{o, incarnation},
			&Gone{ID: text, Charge: true},
			&Tick{},
		} {
			q.Apply(q.Clock(), ev)
		}
		q.Ready()
		if _, err := Restore(q.Snapshot(1, 2), q.encodedRoster(), []*Table{nil}, goldenOptions); err != nil {
			t.Fatal(err)
		}
	})
}
