package pserver

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
	"trainmaster/pserver/wire"
)

// tableShard is the second of two shards with two tables, and a writer of checkpoints.
type tableShard struct {
	*shard
	*checkpoints
	r *rand.Rand
}

var testTables = []table.Config{
	{Name: "users", Dim: 3, Init: table.Uniform, Scale: 1},
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
	h := s.newHolding(m)
	for _, b := range h.blocks {
		b.fill(core.Values{Floats: make([]float32, b.Len)}, m.Rule)
	}
	s.holding.Store(h)
	s.ready.Store(true)
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
	s := newShard(logrus.NewEntry(log), 1, uint16(start), time.Minute, 1<<30)
	c := &checkpoints{shard: s, store: store, folder: store.Shard(1), start: start, keep: 1, log: s.log}
	return &tableShard{s, c, rand.New(rand.NewPCG(start, 1))}
}

// push updates some rows of a table, as a trainer's step, and returns how many slots took it.
func (s *tableShard) push(t testing.TB, ordinal uint32, step uint64, k int, seed uint64) int {
	t.Helper()
	h := s.holding.Load()
	who, fault := s.greet(h, ordinal, uint64(ordinal)+1)
	if fault != nil {
		t.Fatal(fault)
	}
	r, tbl := rand.New(rand.NewPCG(seed, 2)), h.tables[k]
	dim, applied := tbl.Config().Dim, 0
	for range 40 {
		id := r.Int64N(100)
		batch := wire.Rows{Spans: []wire.Span{{Slot: table.SlotOf(id), Rows: 1}}, IDs: []int64{id}}
		for range dim {
			batch.Values = append(batch.Values, float32(r.NormFloat64()))
		}
		if tbl.Check(&batch) != nil {
			continue
		}
		n, err := tbl.Update(&batch, who.columns[k], table.Step{Number: step, Scale: 1})
		if err != nil {
			t.Fatal(err)
		}
		s.counters.rowsPushed.Add(uint64(n))
		applied += n
	}
	return applied
}

func (s *tableShard) values() (list []float32) {
	for _, tbl := range s.holding.Load().tables {
		for id := range int64(100) {
			batch := wire.Rows{Spans: []wire.Span{{Slot: table.SlotOf(id), Rows: 1}}, IDs: []int64{id}}
			if tbl.Check(&batch) == nil {
				row := make([]float32, tbl.Config().Dim)
				tbl.Lookup(&batch, row)
				list = append(list, row...)
			}
		}
	}
	return list
}

func (s *tableShard) mustSave(t testing.TB) {
	t.Helper()
	if err := s.saveSelf(t.Context(), checkpoint.First); err != nil {
		t.Fatal(err)
	}
}

// again is a later start on the same directory.
func (s *tableShard) again(t testing.TB, start uint64) (*tableShard, error) {
	t.Helper()
	heir := openTableShard(t, s.store.Place.String(), start)
	from, err := (&restoring{heir.shard, heir.store, JobState{}, nil}).run(t.Context())
	if err == nil && from.name == "" {
		t.Fatal("no checkpoint")
	}
	return heir, err
}

// folders lists the checkpoints, the oldest first, and marks incremental ones.
func (s *tableShard) folders(t testing.TB) (list []string) {
	t.Helper()
	generations, err := s.folder.Generations(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range slices.Backward(generations) {
		what := g.String()
		m, err := s.folder.Manifest(t.Context(), g)
		if err != nil {
			t.Fatal(err)
		}
		if m.TablesBase != nil {
			what += " since " + m.TablesBase.String()
		}
		list = append(list, what)
	}
	return list
}

// After any number of full and incremental checkpoints, a restored shard has the same rows, accepts new pushes, refuses applied
// pushes, and behaves like the first shard. A full checkpoint stays as long as it is needed.
func TestTablesAreRestored(t *testing.T) {
	for _, kind := range []string{optimizer.SGD, optimizer.Adam, optimizer.FTRL} {
		s := newTableShard(t, t.TempDir(), optimizer.Config{Kind: kind, LearningRate: 0.1})
		start := uint64(1)
		for n := uint64(1); n <= 2*(changesBetween+1)+1; n++ {
			for k := range testTables {
				s.push(t, uint32(n%2), n, k, n)
			}
			s.mustSave(t)
			base := (n-1)/(changesBetween+1)*(changesBetween+1) + 1
			want := []string{fmt.Sprintf("00000001-%08d", base)}
			if n != base {
				want = append(want, fmt.Sprintf("00000001-%08d since 00000001-%08d", n, base))
			}
			if got := s.folders(t); !slices.Equal(got, want) {
				t.Fatalf("%s, after checkpoint %d: %q, expected %q", kind, n, got, want)
			}
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
	}
}

// F52 and F53: damage in a file of a table, or in the checkpoint that it is based on, is found and named; one without its base is no checkpoint.
func TestDamagedTables(t *testing.T) {
	damage := func(path string) error {
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		data[len(data)-1] ^= 1
		return os.WriteFile(path, data, 0o644)
	}
	for want, do := range map[string]func(base, newest string) error{
		"table-0-rows.safetensors has":       func(base, _ string) error { return damage(filepath.Join(base, "table-0-rows.safetensors")) },
		"table-1-exp_avg_sq.safetensors has": func(_, newest string) error { return damage(filepath.Join(newest, "table-1-exp_avg_sq.safetensors")) },
		"table-1-slots.safetensors has":      func(_, newest string) error { return damage(filepath.Join(newest, "table-1-slots.safetensors")) },
		"has a SHA-256 that starts with": func(base, _ string) error { // another complete checkpoint of that name
			return rewrite(base, "table-0-rows.safetensors", func(list []safetensors.Tensor) { list[0].Data[0] ^= 1 })
		},
		"it has the rows that changed since": func(base, _ string) error { return os.RemoveAll(base) },
	} {
		s := newTableShard(t, t.TempDir(), optimizer.Config{Kind: optimizer.Adam})
		for n := range uint64(2) {
			s.push(t, 1, n+1, 0, n)
			s.push(t, 1, n+1, 1, n)
			s.mustSave(t)
		}
		if err := do(filepath.Join(s.folder.String(), "00000001-00000001"), filepath.Join(s.folder.String(), "00000001-00000002")); err != nil {
			t.Fatal(err)
		}
		if _, err := s.again(t, 2); !errors.Is(err, errUnusable) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
	}
}

// Files whose digests hold and whose contents do not fit are refused, too.
func TestTablesThatDoNotFit(t *testing.T) {
	for want, change := range map[string]func(folder string) error{
		"expected slot": func(folder string) error {
			return rewrite(folder, "table-0-ids.safetensors", func(list []safetensors.Tensor) { list[0].Data[0]++ })
		},
		"has version 0": func(folder string) error {
			return rewrite(folder, "table-0-versions.safetensors", func(list []safetensors.Tensor) { clear(list[0].Data) })
		},
		`expected "users.rows", F32`: func(folder string) error {
			return rewrite(folder, "table-0-rows.safetensors", func(list []safetensors.Tensor) { list[0].Name = "others" })
		},
		`tensor "slot_rows" has`: func(folder string) error {
			return rewrite(folder, "table-0-slots.safetensors", func(list []safetensors.Tensor) { list[1].Shape, list[1].Data = []int{0}, nil })
		},
	} {
		s := newTableShard(t, t.TempDir(), optimizer.Config{Kind: optimizer.SGD, LearningRate: 1})
		s.push(t, 1, 1, 0, 1)
		s.mustSave(t)
		if err := change(filepath.Join(s.folder.String(), "00000001-00000001")); err != nil {
			t.Fatal(err)
		}
		if _, err := s.again(t, 2); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
	}
}

// rewrite changes a file of a checkpoint, and the manifest with it.
func rewrite(folder, name string, change func([]safetensors.Tensor)) error {
	list, meta, err := safetensors.ReadFile(filepath.Join(folder, name))
	if err != nil {
		return err
	}
	change(list)
	if err := safetensors.WriteFile(filepath.Join(folder, name), list, meta); err != nil {
		return err
	}
	data, err := os.ReadFile(filepath.Join(folder, name))
	if err != nil {
		return err
	}
	return rewriteManifest(folder, func(m *checkpoint.Manifest) {
		for i := range m.Files {
			if m.Files[i].Name == name {
				m.Files[i].Size, m.Files[i].SHA256 = int64(len(data)), fmt.Sprintf("%x", sha256.Sum256(data))
			}
		}
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

// F51: after a failed full checkpoint the next checkpoint is full; after a failed incremental checkpoint, the changes stay
// marked.
func TestTablesAfterAFailure(t *testing.T) {
	s := newTableShard(t, t.TempDir(), optimizer.Config{Kind: optimizer.SGD, LearningRate: 1})
	n := uint64(0)
	save := func(fails bool) {
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
		if err := s.saveSelf(t.Context(), checkpoint.First); (err != nil) != fails {
			t.Fatalf("checkpoint %d: %v", n, err)
		}
	}
	expect := func(want ...string) {
		t.Helper()
		if got := s.folders(t); !slices.Equal(got, want) {
			t.Fatalf("%q, expected %q", got, want)
		}
	}
	for _, fails := range []bool{true, false, true, false, false} {
		save(fails)
	}
	expect("00000001-00000002", "00000001-00000005 since 00000001-00000002")
	for range changesBetween - 2 {
		save(false)
	}
	save(true) // it would have had all rows
	save(false)
	expect("00000001-00000014")
	save(false)
	expect("00000001-00000014", "00000001-00000015 since 00000001-00000014")
	heir, err := s.again(t, 2)
	if err != nil || !slices.Equal(heir.values(), s.values()) {
		t.Errorf("other rows were restored: %v", err)
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

// A table that lost track of dropped rows, since the last full checkpoint is too old, has all rows in the next
// checkpoint.
func TestNextCheckpointHasAllRowsWhenTrackIsLost(t *testing.T) {
	s := newTableShard(t, t.TempDir(), optimizer.Config{Kind: optimizer.SGD, LearningRate: 0.1})
	s.push(t, 0, 1, 1, 1)
	s.mustSave(t)
	tbl := s.holding.Load().tables[1] // whose rows expire after five steps
	who, fault := s.greet(s.holding.Load(), 0, 1)
	if fault != nil {
		t.Fatal(fault)
	}
	id := int64(1000)
	for step := uint64(2); !tbl.LostTrack(); step++ {
		for !slices.Contains(tbl.Held(), table.SlotOf(id)) || table.SlotOf(id) != tbl.Held()[0] {
			id++
		}
		for again := range uint64(2) { // the second update makes the row
			rows := wire.Rows{Parts: 1, Spans: []wire.Span{{Slot: table.SlotOf(id), Rows: 1}}, IDs: []int64{id}, Values: []float32{1, 1}}
			if _, err := tbl.Update(&rows, who.columns[1], table.Step{Number: 2*step + again, Scale: 1}); err != nil {
				t.Fatal(err)
			}
		}
		id++
	}
	s.counters.rowsPushed.Add(1)
	s.mustSave(t)
	if got, want := s.folders(t), []string{"00000001-00000002"}; !slices.Equal(got, want) {
		t.Fatalf("after the second checkpoint: %q, expected %q, with all rows", got, want)
	}
	heir, err := s.again(t, 2)
	if err != nil {
		t.Fatal(err)
	}
	if restored := heir.holding.Load().tables[1]; restored.Rows() != tbl.Rows() {
		t.Errorf("%d rows were restored, expected %d", restored.Rows(), tbl.Rows())
	}
}

// A cut with all rows clears the marks of changed rows. If it is dropped, the next checkpoint must have all rows as well, or it
// lacks acknowledged updates from before the cut.
func TestCheckpointAfterDroppedFullCutHasAllRows(t *testing.T) {
	s := newTableShard(t, t.TempDir(), optimizer.Config{Kind: optimizer.SGD, LearningRate: 1})
	s.cutLimit = time.Minute
	tbl := s.holding.Load().tables[1] // rows expire after five steps, and the second update of an id makes its row
	who, fault := s.greet(s.holding.Load(), 1, 2)
	if fault != nil {
		t.Fatal(fault)
	}
	next := int64(1000)
	fresh := func(slot uint32) int64 {
		for next++; table.SlotOf(next) != slot; next++ {
		}
		return next
	}
	update := func(slot uint32, step uint64, ids ...int64) {
		t.Helper()
		batch := wire.Rows{Spans: []wire.Span{{Slot: slot, Rows: uint32(len(ids))}}, IDs: ids, Values: make([]float32, 2*len(ids))}
		for i := range batch.Values {
			batch.Values[i] = -1
		}
		if n, err := tbl.Update(&batch, who.columns[1], table.Step{Number: step, Scale: 1}); err != nil || n != 1 {
			t.Fatal(n, err)
		}
		s.counters.rowsPushed.Add(1)
	}
	busy, quiet := tbl.Held()[0], tbl.Held()[1]
	changed, other := fresh(quiet), fresh(quiet)
	update(quiet, 1, changed, other)
	update(quiet, 2, changed, other)
	s.mustSave(t) // all rows
	update(quiet, 3, changed)
	made := fresh(quiet)
	update(quiet, 4, made)
	update(quiet, 5, made)
	step := uint64(1)
	for ; !tbl.LostTrack(); step += 2 { // rows of another slot are made and expire
		id := fresh(busy)
		update(busy, step, id)
		update(busy, step+1, id)
	}
	if _, err := s.beginCut(1, 1, 1); err != nil {
		t.Fatal(err)
	}
	if s.open.cut.base != nil {
		t.Fatal("the cut after the loss of track has changed rows only")
	}
	update(quiet, 6, other) // during the cut
	update(busy, step, fresh(busy))
	s.abortCut(1, 1)
	s.mustSave(t)
	heir, err := s.again(t, 2)
	if err != nil {
		t.Fatal(err)
	}
	restored := heir.holding.Load().tables[1]
	for name, id := range map[string]int64{"changed before the cut": changed, "changed during the cut": other, "made before the cut": made} {
		want, got := make([]float32, 2), make([]float32, 2)
		batch := wire.Rows{Spans: []wire.Span{{Slot: quiet, Rows: 1}}, IDs: []int64{id}}
		if err := errors.Join(tbl.Lookup(&batch, want), restored.Lookup(&batch, got)); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got, want) {
			t.Errorf("the row %s is %v after the restart, expected %v", name, got, want)
		}
	}
	if restored.Rows() != tbl.Rows() {
		t.Errorf("%d rows after the restart, expected %d", restored.Rows(), tbl.Rows())
	}
}
