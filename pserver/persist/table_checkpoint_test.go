package persist

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"trainmaster/internal/safetensors"
	"trainmaster/pserver/checkpoint"
	"trainmaster/pserver/model"
	"trainmaster/pserver/optimizer"
	"trainmaster/pserver/placement"
	core "trainmaster/pserver/shard"
	"trainmaster/pserver/table"
)

// tableShard is the second of two shards with two tables, and a writer of checkpoints.
type tableShard struct {
	*core.Shard
	*Checkpoints
	updates int // in a push
}

var testTables = []table.Config{
	{Name: "users", Dim: 300, Init: table.Uniform, Scale: 1},
	{Name: "words", Dim: 2, Init: table.Zeros, Expiry: 5, Admission: 2},
}

func newTableShard(t testing.TB, dir string, o optimizer.Config) *tableShard {
	t.Helper()
	s := openTableShard(t, dir, 1)
	table, err := placement.New([]placement.Tensor{{Name: "w", Shape: []int{4}}}, 2, testTables...)
	if err != nil {
		t.Fatal(err)
	}
	m, err := model.New(o, false, table)
	if err != nil {
		t.Fatal(err)
	}
	begin(t, s.Shard, m)
	return s
}

func openTableShard(t testing.TB, dir string, start uint64) *tableShard {
	t.Helper()
	store := checkpoint.Store{Place: checkpoint.Disk(dir)}
	if err := store.Shard(1).Prepare(); err != nil {
		t.Fatal(err)
	}
	if n, err := store.Shard(1).CountStart(t.Context()); err != nil || n != start {
		t.Fatalf("start %d, %v", n, err)
	}
	log := logrus.New()
	log.SetOutput(io.Discard)
	s := core.New(nil, 1, uint16(start), time.Minute, 1<<30)
	c := &Checkpoints{shard: s, store: store, folder: store.Shard(1), start: start, log: logrus.NewEntry(log)}
	return &tableShard{s, c, 40}
}

// push updates some rows of a table, as a trainer's step, and returns how many slots took it.
func (s *tableShard) push(t testing.TB, ordinal uint32, step uint64, k int, seed uint64) int {
	t.Helper()
	h := s.View()
	who, fault := join(t, s.Shard, ordinal, uint64(ordinal)+1)
	if fault != nil {
		t.Fatal(fault)
	}
	r, tbl := rand.New(rand.NewPCG(seed, 2)), h.Tables()[k]
	dim, applied := tbl.Config().Dim, 0
	for range s.updates {
		id := r.Int64N(100)
		batch := table.Batch{Spans: []table.Span{{Slot: table.SlotOf(id), Rows: 1}}, IDs: []int64{id}}
		for range dim {
			batch.Values = append(batch.Values, float32(r.NormFloat64()))
		}
		if tbl.Check(&batch) != nil {
			continue
		}
		n, err := tbl.Update(&batch, who.Trainer, table.Step{Number: step, Scale: 1}, nil)
		if err != nil {
			t.Fatal(err)
		}
		s.Counters.RowsPushed.Add(uint64(n))
		applied += n
	}
	return applied
}

func (s *tableShard) values() (list []float32) {
	for _, tbl := range s.View().Tables() {
		for id := range int64(100) {
			batch := table.Batch{Spans: []table.Span{{Slot: table.SlotOf(id), Rows: 1}}, IDs: []int64{id}}
			if tbl.Check(&batch) == nil {
				row := make([]float32, tbl.Config().Dim)
				tbl.Lookup(&batch, nil, row)
				list = append(list, row...)
			}
		}
	}
	return list
}

func (s *tableShard) mustSave(t testing.TB) {
	t.Helper()
	if _, err := savePart(t.Context(), s.Checkpoints); err != nil {
		t.Fatal(err)
	}
}

// again is a later start on the same directory.
func (s *tableShard) again(t testing.TB, start uint64) (*tableShard, error) {
	t.Helper()
	heir := openTableShard(t, s.store.Place.String(), start)
	heir.updates = s.updates
	found, err := loadPart(t.Context(), heir.Checkpoints, JobState{})
	if err == nil && !found {
		t.Fatal("no checkpoint")
	}
	return heir, err
}

// rows returns the segments of the newest checkpoint by table. The folder has that checkpoint, its segments, and the full segments that
// the next checkpoint can relate to, and nothing else.
func (s *tableShard) rows(t testing.TB) []checkpoint.Rows {
	t.Helper()
	entries, err := os.ReadDir(s.folder.String())
	if err != nil {
		t.Fatal(err)
	}
	generations, err := s.folder.Generations(t.Context())
	if err != nil || len(generations) != 1 {
		t.Fatalf("checkpoints %v, %v: expected one", generations, err)
	}
	m, err := s.folder.Manifest(t.Context(), generations[0])
	if err != nil {
		t.Fatal(err)
	}
	want := []string{m.Generation.String(), "STARTS"}
	for k, rows := range m.Rows {
		for _, segment := range rows.Segments() {
			want = append(want, segment.Name)
		}
		if now := s.history(s.View())[k]; now.full != nil && !slices.Contains(want, now.full.Name) {
			want = append(want, now.full.Name)
		}
	}
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	slices.Sort(want)
	if slices.Sort(got); !slices.Equal(got, want) {
		t.Fatalf("the directory has %q, expected %q", got, want)
	}
	return m.Rows
}

// After any number of checkpoints with full segments and deltas, a restored shard has the same rows, accepts new pushes, refuses applied
// pushes, and behaves like the first shard. A full segment stays as long as it is named.
func TestTablesAreRestored(t *testing.T) {
	for _, kind := range []string{optimizer.SGD, optimizer.Adam, optimizer.FTRL} {
		s := newTableShard(t, t.TempDir(), optimizer.Config{Kind: kind, LearningRate: 0.1})
		start := uint64(1)
		s.updates = 400
		segments := map[string]bool{}
		full, deltas := "", 0
		for n := uint64(1); n <= 25; n++ {
			for k := range testTables {
				s.push(t, uint32(n%2), n, k, n)
			}
			s.updates = 5
			s.mustSave(t)
			rows := s.rows(t)[0]
			if segments[rows.Full.Name] = true; rows.Delta != nil {
				deltas++
				if rows.Full.Name != full {
					t.Fatalf("%s, checkpoint %d: the delta relates to %s, and the last full segment is %s", kind, n, rows.Full.Name, full)
				}
			}
			full = rows.Full.Name
			if n%5 != 1 {
				continue
			}
			start++
			heir, err := s.again(t, start)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(heir.values(), s.values()) {
				t.Fatalf("%s, checkpoint %d: other rows were restored", kind, n)
			}
			if again := heir.push(t, uint32(n%2), n, 0, n); again != 0 {
				t.Fatalf("%s, checkpoint %d: a repeated push was applied to %d slots", kind, n, again)
			}
			heir.push(t, 5, n+3, 1, 99)
			if err := os.WriteFile(filepath.Join(s.folder.String(), "STARTS"), []byte("1\n"), 0o644); err != nil { // the first shard continues
				t.Fatal(err)
			}
			start = 1
		}
		if len(segments) < 3 || deltas < 15 {
			t.Errorf("%s: %d full segments and %d deltas: the test covers too little", kind, len(segments), deltas)
		}
	}
}

// F52 and F53: damage in a file of a checkpoint or of a segment that it names is found and named.
func TestDamagedTables(t *testing.T) {
	damage := func(path string) error {
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		data[len(data)-1] ^= 1
		return os.WriteFile(path, data, 0o644)
	}
	for want, do := range map[string]func(folder string) error{
		"segment 00000001-00000001-table-0: rows.safetensors has": func(folder string) error {
			return damage(filepath.Join(folder, "00000001-00000001-table-0", "rows.safetensors"))
		},
		"segment 00000001-00000002-table-1: exp_avg_sq.safetensors has": func(folder string) error {
			return damage(filepath.Join(folder, "00000001-00000002-table-1", "exp_avg_sq.safetensors"))
		},
		"table-1-slots.safetensors has": func(folder string) error {
			return damage(filepath.Join(folder, "00000001-00000002", "table-1-slots.safetensors"))
		},
		"segment 00000001-00000001-table-0: counts.safetensors has": func(folder string) error {
			return damage(filepath.Join(folder, "00000001-00000001-table-0", "counts.safetensors"))
		},
		"segment 00000001-00000001-table-1: open": func(folder string) error {
			return os.RemoveAll(filepath.Join(folder, "00000001-00000001-table-1"))
		},
	} {
		s := newTableShard(t, t.TempDir(), optimizer.Config{Kind: optimizer.Adam})
		for n := range uint64(2) {
			s.push(t, 1, n+1, 0, n)
			s.push(t, 1, n+1, 1, n)
			s.mustSave(t)
		}
		if err := do(s.folder.String()); err != nil {
			t.Fatal(err)
		}
		if _, err := s.again(t, 2); !errors.Is(err, ErrUnusable) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
	}
}

// Files whose digests hold and whose contents do not fit are refused, too.
func TestTablesThatDoNotFit(t *testing.T) {
	for want, change := range map[string]func(folder string) error{
		"rows, found": func(folder string) error {
			return rewrite(folder, "00000001-00000001/table-0-slots.safetensors", func(list []safetensors.Tensor) { list[1].Data[0]++ })
		},
		"expected slot": func(folder string) error {
			return rewrite(folder, "00000001-00000001-table-0/ids.safetensors", func(list []safetensors.Tensor) { list[0].Data[0]++ })
		},
		"has version 0": func(folder string) error {
			return rewrite(folder, "00000001-00000001-table-0/versions.safetensors", func(list []safetensors.Tensor) { clear(list[0].Data) })
		},
		`expected "users.rows", F32`: func(folder string) error {
			return rewrite(folder, "00000001-00000001-table-0/rows.safetensors", func(list []safetensors.Tensor) { list[0].Name = "others" })
		},
		`tensor "slot_rows" has`: func(folder string) error {
			return rewrite(folder, "00000001-00000001/table-0-slots.safetensors", func(list []safetensors.Tensor) { list[1].Shape, list[1].Data = []int{0}, nil })
		},
	} {
		s := newTableShard(t, t.TempDir(), optimizer.Config{Kind: optimizer.SGD, LearningRate: 1})
		s.push(t, 1, 1, 0, 1)
		s.mustSave(t)
		if err := change(s.folder.String()); err != nil {
			t.Fatal(err)
		}
		if _, err := s.again(t, 2); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
	}
}

// rewrite changes a file of the first checkpoint or its segments, and the manifest with it.
func rewrite(folder, name string, change func([]safetensors.Tensor)) error {
	path := filepath.Join(folder, name)
	list, meta, err := safetensors.ReadFile(path)
	if err != nil {
		return err
	}
	change(list)
	if err := safetensors.WriteFile(path, list, meta); err != nil {
		return err
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return rewriteManifest(filepath.Join(folder, "00000001-00000001"), func(m *checkpoint.Manifest) {
		lists := map[string][]checkpoint.Entry{m.Generation.String(): m.Files}
		for _, rows := range m.Rows {
			lists[rows.Full.Name] = rows.Full.Files
		}
		dir, base := filepath.Split(name)
		entries := lists[filepath.Clean(dir)]
		i := slices.IndexFunc(entries, func(e checkpoint.Entry) bool { return e.Name == base })
		entries[i].Size, entries[i].SHA256 = int64(len(data)), fmt.Sprintf("%x", sha256.Sum256(data))
	})
}

// rewriteManifest changes the manifest of a checkpoint and its digest.
func rewriteManifest(folder string, change func(*checkpoint.Manifest)) error {
	path := filepath.Join(folder, checkpoint.ManifestFile)
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var s struct {
		SHA256   string
		Manifest json.RawMessage
	}
	var m checkpoint.Manifest
	if err := errors.Join(json.Unmarshal(text, &s), json.Unmarshal(s.Manifest, &m)); err != nil {
		return err
	}
	change(&m)
	inner, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return os.WriteFile(path, fmt.Appendf(nil, `{"sha256": "%x", "manifest": %s}`, sha256.Sum256(inner), inner), 0o644)
}

// F51: a failed checkpoint changes nothing, whether its segment is full or a delta: the next checkpoint has all changes, and the
// directory has no files of the failed one.
func TestTablesAfterAFailure(t *testing.T) {
	s := newTableShard(t, t.TempDir(), optimizer.Config{Kind: optimizer.SGD, LearningRate: 1})
	n := uint64(0)
	var full string
	save := func(fails, isFull bool) {
		t.Helper()
		n++
		s.push(t, 1, n, 0, n)
		blocked := filepath.Join(s.folder.String(), checkpoint.Generation{Start: 1, Sequence: s.sequence + 1}.String())
		s.folder.Points = func(what string) error {
			if fails && what == "rows written" { // what could not be published before
				os.RemoveAll(blocked)
			}
			return nil
		}
		if isFull {
			s.history(s.View())[0].deltas = 1 << 40
		}
		if _, err := savePart(t.Context(), s.Checkpoints); (err != nil) != fails {
			t.Fatalf("checkpoint %d: %v", n, err)
		}
		if n == 1 {
			return
		}
		rows := s.rows(t)[0]
		switch {
		case fails && rows.Full.Name != full:
			t.Fatalf("after the failed checkpoint %d the full segment is %s, expected %s", n, rows.Full.Name, full)
		case !fails && (rows.Delta == nil) != isFull && n > 2:
			t.Fatalf("checkpoint %d has segments %v and %v, expected a full one: %t", n, rows.Full, rows.Delta, isFull)
		}
		full = rows.Full.Name
	}
	s.updates = 400
	save(true, false)
	save(false, false)
	s.updates = 2
	for _, c := range []struct{ fails, isFull bool }{
		{false, false}, {true, false}, {false, false}, {true, true}, {true, true}, {false, true}, {false, false}, {true, true}, {true, false}, {false, false},
	} {
		save(c.fails, c.isFull)
		if c.fails && c.isFull {
			s.history(s.View())[0].deltas = 0
		}
		if c.fails {
			continue
		}
		heir, err := s.again(t, 2)
		if err != nil || !slices.Equal(heir.values(), s.values()) {
			t.Fatalf("checkpoint %d: other rows were restored: %v", n, err)
		}
		if err := os.WriteFile(filepath.Join(s.folder.String(), "STARTS"), []byte("1\n"), 0o644); err != nil { // the first shard continues
			t.Fatal(err)
		}
	}
}

// A cut during pushes is consistent: it has no later push.
func TestTablesInACut(t *testing.T) {
	s := newTableShard(t, t.TempDir(), optimizer.Config{Kind: optimizer.SGD, LearningRate: 1})
	s.push(t, 1, 1, 0, 1)
	before := s.values()
	once := false
	s.folder.Points = func(what string) error {
		if what == "headers written" && !once {
			once = true
			s.push(t, 1, 2, 0, 2)
			s.push(t, 1, 2, 1, 2)
		}
		return nil
	}
	s.mustSave(t)
	heir, err := s.again(t, 2)
	if err != nil || !slices.Equal(heir.values(), before) {
		t.Errorf("other rows than at the cut were restored: %v", err)
	}
	if heir.push(t, 1, 2, 0, 2) == 0 {
		t.Error("a push after the cut is taken for a repetition")
	}
}

// A cut that is dropped changes nothing, whether it is full or not: the next delta has all changes since the last full segment that was
// written, from before the dropped cut, during it and after it.
func TestCheckpointAfterDroppedCutHasAllChanges(t *testing.T) {
	s := newTableShard(t, t.TempDir(), optimizer.Config{Kind: optimizer.SGD, LearningRate: 1})
	s.cutLimit = time.Minute
	step := uint64(0)
	push := func() {
		step++
		s.push(t, 1, step, 0, step)
		s.push(t, 1, step, 1, step)
	}
	s.updates = 400
	push()
	s.mustSave(t)
	s.updates = 2
	for number, isFull := range []bool{false, true, true, false} {
		push()
		for k := range testTables {
			if isFull {
				s.history(s.View())[k].deltas += 1 << 40
			}
		}
		cut := s.lastCut.Load() + 1
		if _, err := s.BeginCut(cut, 1, 1); err != nil {
			t.Fatal(err)
		}
		if got := s.open.cut.Tables[0].Since == nil; got != isFull {
			t.Fatalf("cut %d is full: %t, expected %t", number+1, got, isFull)
		}
		for k := range testTables {
			if isFull {
				s.history(s.View())[k].deltas -= 1 << 40
			}
		}
		push()
		s.AbortCut(cut, 1)
		push()
		s.mustSave(t)
		if s.rows(t)[0].Delta == nil {
			t.Fatal("the next checkpoint has a full segment: expected a delta")
		}
		heir, err := s.again(t, 2)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(heir.values(), s.values()) {
			t.Errorf("other rows were restored after dropped cut %d", number+1)
		}
		if err := os.WriteFile(filepath.Join(s.folder.String(), "STARTS"), []byte("1\n"), 0o644); err != nil { // the first shard continues
			t.Fatal(err)
		}
	}
}

// A new full segment is written before the number of the cut before an update would exceed its byte.
func TestFullSegmentBeforeTheNumberWraps(t *testing.T) {
	cut := &table.Cut{Number: 7}
	r := &rowHistory{full: &checkpoint.Segment{Files: []checkpoint.Entry{{Size: 1000}}}, cut: cut}
	if r.since(7+table.MaxDistance) != cut {
		t.Errorf("a cut %d after the full one has a full segment, expected a delta", table.MaxDistance)
	}
	if r.since(7+table.MaxDistance+1) != nil {
		t.Errorf("a cut %d after the full one has a delta, expected a full segment", table.MaxDistance+1)
	}
}

// A full segment is written when the deltas since the last one, and one more, would together be as large.
func TestFullSegmentWhenDeltasAreAsLarge(t *testing.T) {
	r := &rowHistory{}
	written := func(full bool, size int64) checkpoint.Rows {
		s := &checkpoint.Segment{Files: []checkpoint.Entry{{Size: size}}}
		if full {
			return checkpoint.Rows{Full: s}
		}
		return checkpoint.Rows{Full: r.full, Delta: s}
	}
	if r.since(1) != nil {
		t.Error("the first segment of a process is a delta")
	}
	first, second := &table.Cut{Number: 1}, &table.Cut{Number: 6}
	r.wrote(written(true, 1000), first)
	for i, size := range []int64{100, 200, 300} { // with another 300 these are 900
		if r.since(uint64(i)+2) != first {
			t.Fatalf("cut %d: expected a delta of cut 1", i+2)
		}
		r.wrote(written(false, size), nil)
	}
	if r.since(5) != first {
		t.Error("expected a delta: 600 bytes, and another 300, of 1000")
	}
	r.wrote(written(false, 301), nil)
	if r.since(6) != nil {
		t.Error("expected a full segment: 901 bytes, and another 301, of 1000")
	}
	r.wrote(written(true, 1000), second)
	if r.since(7) != second {
		t.Error("expected a delta of cut 6")
	}
}
