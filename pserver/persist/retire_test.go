package persist

import (
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"trainmaster/pserver/checkpoint"
	"trainmaster/pserver/model"
	"trainmaster/pserver/optimizer"
	"trainmaster/pserver/placement"
	core "trainmaster/pserver/shard"
	"trainmaster/pserver/table"
)

// retiring is a shard in a folder, with a block and a table.
func retiring(t *testing.T, dir string) (*core.Shard, *Checkpoints) {
	t.Helper()
	log := logrus.New()
	log.SetOutput(io.Discard)
	s, files := open(t, checkpoint.Store{Place: checkpoint.Disk(dir)}, 0, JobState{Shards: 1}, log)
	if s.Ready() {
		return s, files
	}
	table, err := placement.New([]placement.Tensor{{Name: "a", Shape: []int{3}}}, 1, table.Config{Name: "rows", Dim: 2, Init: table.Zeros, Admission: 1})
	if err != nil {
		t.Fatal(err)
	}
	m, err := model.New(optimizer.Config{Kind: optimizer.SGD, LearningRate: 1}, false, table)
	if err != nil {
		t.Fatal(err)
	}
	begin(t, s, m)
	return s, files
}

// pushOnce pushes step 1 of a trainer to the block; the version that the block is at says whether it was applied.
func pushOnce(t *testing.T, s *core.Shard, ordinal uint32, incarnation uint64) (uint64, *core.Refusal) {
	t.Helper()
	h := s.View()
	b := h.Blocks()[0]
	by, fault := join(t, s, ordinal, incarnation)
	if fault != nil {
		return versionOf(b), fault
	}
	_, fault = s.Push(h, b, by, core.Update{Step: 1, Scale: 1}, core.Values{Floats: make([]float32, b.Len)}, nil)
	return versionOf(b), fault
}

// Of thousands of trainers that come and go, a shard keeps those with sessions. The others stay refused, also after a restart.
func TestTrainersComeAndGo(t *testing.T) {
	dir := t.TempDir()
	s, files := retiring(t, dir)
	const steady, visitors = uint64(1), 5000
	if _, fault := pushOnce(t, s, 1, steady); fault != nil {
		t.Fatal(fault)
	}
	most := 0
	for n := uint64(2); n <= visitors; n++ {
		if _, fault := pushOnce(t, s, uint32(n), n); fault != nil {
			t.Fatal(fault)
		}
		if most = max(most, len(s.Trainers())); n%20 == 0 {
			tell(t, s, 1, core.NewRetirement("6a6f62", n+1, []uint64{steady, n}))
		}
	}
	if len(s.Trainers()) != 2 || most > 22 {
		t.Errorf("the shard knows %d trainers, at most %d: expected 2, and 22 at most", len(s.Trainers()), most)
	}
	refused := func(why core.Reason) {
		t.Helper()
		before := versionOf(s.View().Blocks()[0])
		if after, fault := pushOnce(t, s, 7, 7); fault == nil || fault.Reason != why || after != before {
			t.Errorf("a late push of one that is gone: %v, and the block goes from version %d to %d: expected %v", fault, before, after, why)
		}
		for _, known := range []uint64{steady, visitors} {
			if after, fault := pushOnce(t, s, uint32(known), known); fault != nil || after != before {
				t.Errorf("a repeated push of one that is there: %v, and the block goes from version %d to %d", fault, before, after)
			}
		}
	}
	refused(core.Fenced)
	tell(t, s, 1, core.NewRetirement("6a6f62", 3, nil)) // it is late
	refused(core.Fenced)
	saveSet(t, files)
	s, _ = retiring(t, dir)
	if len(s.Trainers()) != 2 {
		t.Errorf("after a restart the shard knows %d trainers, expected 2", len(s.Trainers()))
	}
	refused(core.NotReady)
	tell(t, s, 1, core.NewRetirement("6a6f62", visitors+1, []uint64{steady, visitors}))
	refused(core.Fenced)
	s, _ = retiring(t, dir)
	tell(t, s, 1, core.NewRetirement("616e6577", 5, nil)) // the job was started again, and its incarnations too
	if _, fault := pushOnce(t, s, 9, 6); fault != nil {
		t.Errorf("a trainer of the job that was started again: %v", fault)
	}
}

// A replaced leader retires no trainers, and neither does the leader of another job with an old address.
func TestWhoMayRetire(t *testing.T) {
	s, _ := retiring(t, t.TempDir())
	tell(t, s, 7, core.NewRetirement("6a6f62", 10, nil))
	for what, said := range map[string]struct {
		term  uint64
		to    core.Retirement
		words string
	}{
		"an older leader":                  {6, core.NewRetirement("6a6f62", 100, nil), "shard 0: expected term 7 or later, found 6"},
		"the leader of another job":        {8, core.NewRetirement("6f74686572", 100, nil), "of job 6f74686572, shard 0 is of job 6a6f62"},
		"one of both":                      {6, core.NewRetirement("6f74686572", 1, nil), "look the addresses up again"},
		"of another job, with less to say": {8, core.NewRetirement("6f74686572", 0, nil), "not the leader of this job"},
	} {
		err := s.Retire(said.term, said.to, nil)
		if err == nil || !strings.Contains(err.Error(), said.words) || !errors.Is(err, core.ErrNotLeader) {
			t.Errorf("%s: %v", what, err)
		}
		if _, fault := join(t, s, 50, 50); fault != nil {
			t.Errorf("%s: a trainer that is at work: %v", what, fault)
		}
		if _, fault := join(t, s, 5, 5); fault == nil || fault.Reason != core.Fenced {
			t.Errorf("%s: a retired trainer: %v", what, fault)
		}
	}
	if s.Follows(7) != nil || s.Follows(6) == nil {
		t.Errorf("expected a shard at term 7, found %v, %v", s.Follows(7), s.Follows(6))
	}
}

// tell sends a retirement that is accepted.
func tell(t *testing.T, s *core.Shard, term uint64, to core.Retirement) {
	t.Helper()
	if err := s.Retire(term, to, nil); err != nil {
		t.Fatal(err)
	}
}

// A connection that was open when its trainer was retired changes nothing any more, rows of tables neither.
func TestRetiredTrainerIsFenced(t *testing.T) {
	s, _ := retiring(t, t.TempDir())
	h := s.View()
	gone, fault := join(t, s, 1, 1)
	if fault != nil {
		t.Fatal(fault)
	}
	tell(t, s, 1, core.NewRetirement("6a6f62", 2, nil))
	if _, fault := s.Push(h, h.Blocks()[0], gone, core.Update{Step: 1, Scale: 1}, core.Values{Floats: make([]float32, 3)}, nil); fault == nil || fault.Reason != core.Fenced {
		t.Errorf("a push to a block: %v, expected it to be fenced", fault)
	}
	rows := table.Batch{Spans: []table.Span{{Slot: table.SlotOf(5), Rows: 1}}, IDs: []int64{5}, Values: []float32{1, 1}}
	if n, err := h.Tables()[0].Update(&rows, gone.Trainer, table.Step{Number: 1, Scale: 1}, nil); err == nil || n != 0 {
		t.Errorf("a push to a row: %d applied, %v: expected it to be refused", n, err)
	}
}

// Of two incarnations of a trainer that parts of a set know, the newer one counts, whichever part is read first: the older one is
// fenced, and what the newer one has not pushed to a block it may still push.
func TestNewerIncarnationWinsInARestore(t *testing.T) {
	table, err := placement.New([]placement.Tensor{{Name: "a", Shape: []int{3}}, {Name: "b", Shape: []int{3}}}, 2)
	if err != nil {
		t.Fatal(err)
	}
	store := checkpoint.Store{Place: checkpoint.Disk(t.TempDir())}
	log := logrus.New()
	log.SetOutput(io.Discard)
	m, err := model.New(optimizer.Config{Kind: optimizer.SGD, LearningRate: 1}, false, table)
	if err != nil {
		t.Fatal(err)
	}
	var parts []*checkpoint.Checkpoint
	for i, incarnation := range []uint64{5, 9} {
		s := core.New(nil, i, 1, time.Minute, 1<<20)
		begin(t, s, m)
		if _, fault := pushOnce(t, s, 1, incarnation); fault != nil {
			t.Fatal(fault)
		}
		folder := store.Shard(i)
		if err := folder.Prepare(); err != nil {
			t.Fatal(err)
		}
		if _, err := folder.CountStart(t.Context()); err != nil {
			t.Fatal(err)
		}
		files := &Checkpoints{shard: s, store: store, folder: folder, start: 1, log: logrus.NewEntry(log), job: JobState{ID: "first"}}
		if _, err := savePart(t.Context(), files); err != nil {
			t.Fatal(err)
		}
		part, err := folder.Open(t.Context(), checkpoint.Generation{Start: 1, Sequence: 1})
		if err != nil {
			t.Fatal(err)
		}
		parts = append(parts, part)
	}
	// A resumed job beyond the epochs of a frame is refused: the epoch does not begin again.
	beyond := core.New(nil, 0, 2, time.Minute, 1<<20)
	err = fillFrom(beyond, parts, JobState{ID: "resumed", Shards: 1, Epoch: 1 << 16}, nil)
	if err == nil || !strings.Contains(err.Error(), "job epoch 65536: expected 1 to 65535") || beyond.Ready() {
		t.Errorf("epoch beyond 16 bits: expected an error and no parameters, found %v, ready %v", err, beyond.Ready())
	}
	for _, order := range [][]int{{0, 1}, {1, 0}} {
		s := core.New(nil, 0, 2, time.Minute, 1<<20)
		if err := fillFrom(s, []*checkpoint.Checkpoint{parts[order[0]], parts[order[1]]}, JobState{Shards: 1}, nil); err != nil {
			t.Fatal(err)
		}
		known := s.Trainers()
		var applied []uint64
		for _, b := range s.View().Blocks() {
			b.Inspect(known[0], func(_ []float32, _, step uint64) { applied = append(applied, step) })
		}
		if len(known) != 1 || known[0].Incarnation() != 9 || !slices.Equal(applied, []uint64{0, 1}) {
			t.Errorf("parts %v: incarnation %d with steps %v, expected 9 with step 1 in the second block alone", order, known[0].Incarnation(), applied)
		}
		if _, fault := join(t, s, 1, 5); fault == nil || fault.Reason != core.Fenced {
			t.Errorf("parts %v: hello of the older incarnation: %v, expected it to be fenced", order, fault)
		}
	}
}
