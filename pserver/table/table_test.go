package table

import (
	"errors"
	"maps"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"trainmaster/pserver/optimizer"
	"trainmaster/pserver/partition"
)

var plain = optimizer.Config{Kind: optimizer.SGD, LearningRate: 1}

// The generator is SplitMix64, as its authors' program has it.
func TestSplitMix64(t *testing.T) {
	s := stream(1234567)
	for i, want := range []uint64{6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821} {
		if got := s.next(); got != want {
			t.Fatalf("output %d is %d, expected %d", i, got, want)
		}
	}
}

// Initial values are part of the meaning of a checkpoint: they never change.
func TestInitialValues(t *testing.T) {
	for _, c := range []struct {
		cfg  Config
		id   int64
		want []float32
	}{
		{Config{Name: "users", Dim: 3, Init: Uniform, Scale: 0.05, Seed: 1}, 42, []float32{0.02988162636756897, 0.01136675477027893, -0.024246329441666603}},
		{Config{Name: "users", Dim: 3, Init: Normal, Scale: 0.05, Seed: 1}, -42, []float32{0.015583038330078125, -0.06525726616382599, -0.0065628052689135075}},
		{Config{Name: "users", Dim: 3, Init: Zeros}, 1, []float32{0, 0, 0}},
	} {
		row := []float32{9, 9, 9}
		newInitializer(c.cfg).fill(row, c.id)
		if !slices.Equal(row, c.want) {
			t.Errorf("%s: %v, expected %v", c.cfg.Init, row, c.want)
		}
	}
}

// The initializers have the mean, the deviation and the bounds that they say.
func TestInitialDistributions(t *testing.T) {
	for _, c := range []struct {
		init             string
		deviation, bound float64
	}{{Uniform, 2 / math.Sqrt(3), 2}, {Normal, 2, 12}} {
		i := newInitializer(Config{Name: "t", Init: c.init, Scale: 2})
		var sum, squares float64
		row := make([]float32, 10)
		const n = 20_000
		for id := range int64(n) {
			i.fill(row, id)
			for _, v := range row {
				sum += float64(v)
				squares += float64(v) * float64(v)
				if math.Abs(float64(v)) > c.bound {
					t.Fatalf("%s: %v is beyond %v", c.init, v, c.bound)
				}
			}
		}
		mean, deviation := sum/(10*n), math.Sqrt(squares/(10*n))
		if math.Abs(mean) > 0.02 || math.Abs(deviation/c.deviation-1) > 0.01 {
			t.Errorf("%s: mean %v, deviation %v, expected 0 and %v", c.init, mean, deviation, c.deviation)
		}
	}
}

func TestConfigErrorsNameField(t *testing.T) {
	good := Config{Name: "t", Dim: 1, Init: Uniform, Scale: 1}
	for want, change := range map[string]func(*Config){
		"name":        func(c *Config) { c.Name = "" },
		"0 floats":    func(c *Config) { c.Dim = 0 },
		"initializer": func(c *Config) { c.Init = "xavier" },
		"scale NaN":   func(c *Config) { c.Scale = float32(math.NaN()) },
		"scale -1":    func(c *Config) { c.Scale = -1 },
		"scale 0":     func(c *Config) { c.Scale = 0 },
		"zeros with":  func(c *Config) { c.Init = Zeros },
		"drops rows":  func(c *Config) { c.Expiry = 1 << 40 },
		"gives a row": func(c *Config) { c.Admission = 1 << 31 },
	} {
		c := good
		change(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
	}
}

func TestCheckRefuses(t *testing.T) {
	table := New(valid(t, Config{Name: "t", Dim: 1, Init: Zeros}), validRule(t, plain), held(3, 0), noCut)
	id := int64(0)
	for SlotOf(id) != 3 {
		id++
	}
	for _, c := range []struct {
		rows Batch
		want error
	}{
		{Batch{Spans: []Span{{Slot: 3, Rows: 1}}, IDs: []int64{id}}, nil},
		{Batch{Spans: []Span{{Slot: 4}}}, ErrNotHeld},
		{Batch{Spans: []Span{{Slot: Slots}}}, ErrNotHeld},
		{Batch{Spans: []Span{{Slot: 6, Rows: 1}}, IDs: []int64{id}}, ErrWrongSlot},
	} {
		if err := table.Check(&c.rows); !errors.Is(err, c.want) {
			t.Errorf("%v: %v, expected %v", c.rows, err, c.want)
		}
	}
}

// A trainer that has ended changes nothing any more.
func TestUpdateByEndedTrainer(t *testing.T) {
	table, column := newTable(t, Config{Name: "t", Dim: 1, Init: Zeros}, plain, noCut), trainer(0)
	batch, _ := grouped([]int64{1}, []float32{1}, 1)
	column.End()
	if _, err := table.Update(&batch, column, Step{1, 1}, nil); !errors.Is(err, partition.ErrEnded) || table.Rows() != 0 {
		t.Errorf("%v, and %d rows", err, table.Rows())
	}
}

// A slot that has no room for a batch takes none of it.
func TestFullSlot(t *testing.T) {
	table, column := newTable(t, Config{Name: "t", Dim: 1, Init: Zeros}, plain, noCut), trainer(0)
	s := table.slots[SlotOf(1)]
	s.liveRows = maxRows // as if
	batch, _ := grouped([]int64{1}, []float32{1}, 1)
	if _, err := table.Update(&batch, column, Step{1, 1}, nil); !errors.Is(err, ErrFull) || s.end != 0 {
		t.Errorf("%v, and %d rows", err, s.end)
	}
	if err := table.CheckRoom(SlotOf(1), 1); !errors.Is(err, ErrFull) {
		t.Error(err)
	}
	s.liveRows = 0
	if n, err := table.Update(&batch, column, Step{1, 1}, nil); err != nil || n != 1 {
		t.Errorf("the step that was refused is taken for a repetition: %d slots, %v", n, err)
	}
}

// Trainers push to rows while others look them up and checkpoints are cut repeatedly. No row is torn, no push
// is lost or applied twice, and every cut has whole updates of a slot only.
func TestConcurrency(t *testing.T) {
	const trainers, ids, dim = 4, 200, 8
	steps := uint64(60)
	var current atomic.Pointer[Cut]
	table := newTable(t, Config{Name: "t", Dim: dim, Init: Zeros}, plain, current.Load)
	all := make([]int64, ids)
	for i := range all {
		all[i] = int64(i)
	}
	whole := func(values []float32) bool {
		for k := range ids {
			for _, v := range values[k*dim : (k+1)*dim] {
				if v != values[k*dim] {
					return false
				}
			}
		}
		return true
	}
	var pushers, others sync.WaitGroup
	var columns []*partition.Trainer
	for i := range trainers {
		column := trainer(i)
		columns = append(columns, column)
		pushers.Go(func() {
			for step := uint64(1); step <= steps; step++ {
				for range 2 { // the second is a repetition
					batch, _ := grouped(all, slices.Repeat([]float32{-1}, ids*dim), dim)
					if _, err := table.Update(&batch, column, Step{step, 1}, nil); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	done := make(chan struct{})
	others.Go(func() {
		for {
			if !whole(lookup(table, all)) {
				t.Error("a row is torn")
			}
			select {
			case <-done:
				return
			default:
			}
		}
	})
	others.Go(func() {
		var full *Cut
		for number := uint64(1); ; number++ {
			cut := &Cut{Number: number, Since: full, Trainers: columns}
			if number%3 == 1 {
				cut.Since, full = nil, cut
			}
			current.Store(cut)
			for _, slot := range table.Held() {
				z := table.Sizes(slot, cut)
				m := table.Collect(slot, cut)
				if len(m.IDs) != z.Rows {
					t.Errorf("cut %d of slot %d has %d rows, its size says %d", number, slot, len(m.IDs), z.Rows)
				}
				pushed := uint64(0)
				for _, s := range m.Steps {
					pushed += s
				}
				for _, v := range m.Values {
					if v != float32(pushed) {
						t.Errorf("cut %d of slot %d has value %v, and %d pushes", number, slot, v, pushed)
					}
				}
			}
			current.Store(nil)
			table.EndCut()
			select {
			case <-done:
				return
			default:
			}
		}
	})
	pushers.Wait()
	close(done)
	others.Wait()
	for i, v := range lookup(table, all) {
		if v != float32(trainers*steps) {
			t.Fatalf("value %d is %v, expected %d", i, v, trainers*steps)
		}
	}
}

// A full cut and later changes restore a table with the same behavior.
func TestFullAndChangesRestore(t *testing.T) {
	for _, o := range []optimizer.Config{plain, {Kind: optimizer.Adam}} {
		cfg := valid(t, Config{Name: "t", Dim: 2, Init: Normal, Scale: 1, Expiry: 8, Admission: 2})
		o := validRule(t, o)
		var current atomic.Pointer[Cut]
		table, want, column := New(cfg, o, held(1, 0), current.Load), newNaive(cfg, o), trainer(0)
		r := rand.New(rand.NewPCG(3, 3))
		ids := universe(r, 30)
		push := func(step uint64, tables ...*Table) {
			some, grads := make([]int64, 40), make([]float32, 80)
			for k := range some {
				some[k] = ids[r.IntN(len(ids))]
			}
			for i := range grads {
				grads[i] = float32(r.NormFloat64())
			}
			want.push(some, grads, column, step, 1)
			for _, to := range tables {
				batch, _ := grouped(some, grads, 2)
				if _, err := to.Update(&batch, trainer(0), Step{step, 1}, nil); err != nil {
					t.Fatal(err)
				}
			}
		}
		collect := func(number uint64, since *Cut) (cut *Cut, images [Slots]*Image) {
			cut = &Cut{Number: number, Since: since, Trainers: []*partition.Trainer{column}}
			current.Store(cut)
			for _, slot := range table.Held() {
				z := table.Sizes(slot, cut)
				m := table.Collect(slot, cut)
				if (z != Sizes{len(m.IDs), len(m.Unchanged), len(m.Candidates)}) {
					t.Fatalf("cut %d of slot %d: its sizes were %v, it has %d rows, %d unchanged, %d waiting", number, slot, z, len(m.IDs), len(m.Unchanged), len(m.Candidates))
				}
				images[slot] = m
			}
			current.Store(nil)
			table.EndCut()
			return cut, images
		}
		step := uint64(0)
		for number := uint64(1); number < 10; number += 2 {
			for range 6 {
				step++
				push(step, table)
			}
			fullCut, full := collect(number, nil)
			for range 14 {
				step++
				push(step, table)
			}
			_, changes := collect(number+1, fullCut)
			again, freed := New(cfg, o, held(1, 0), noCut), 0
			for _, slot := range again.Held() {
				for row, id := range full[slot].IDs {
					if !slices.Contains(changes[slot].IDs, id) && changes[slot].Unchanged[row/8]>>(row%8)&1 == 0 {
						freed++
					}
				}
				for _, m := range []*Image{full[slot], changes[slot]} {
					if err := again.Restore(slot, m, []*partition.Trainer{trainer(0)}); err != nil {
						t.Fatal(err)
					}
				}
			}
			if freed == 0 {
				t.Fatal("nothing expired between the cuts: the test covers too little")
			}
			step++
			push(step, table, again)
			for _, what := range []*Table{table, again} {
				if err := differ(what, want, ids); err != nil || what.Rows() != len(want.rows) {
					t.Fatalf("cut %d: %d rows, expected %d: %v", number, what.Rows(), len(want.rows), err)
				}
			}
		}
	}
}

func TestRestoreRefuses(t *testing.T) {
	id := int64(0)
	for SlotOf(id) != 7 {
		id++
	}
	good := Image{LiveRows: 1, IDs: []int64{id}, Versions: []uint32{1}, Values: []float32{1}}
	for want, change := range map[string]func(*Image){
		"1 rows with 0 versions": func(m *Image) { m.Versions = nil },
		"2 values":               func(m *Image) { m.Values = []float32{1, 2} },
		"expected slot":          func(m *Image) { m.IDs = []int64{id + 1} },
		"duplicate id": func(m *Image) {
			m.IDs, m.Versions, m.Values = []int64{id, id}, []uint32{1, 1}, []float32{1, 1}
		},
		"version 0":                func(m *Image) { m.Versions = []uint32{0} },
		"expected 2 rows, found 1": func(m *Image) { m.LiveRows = 2 },
		"0 bits":                   func(m *Image) { m.Unchanged = []byte{1} },
		"candidate":                func(m *Image) { m.Candidates = []Candidate{{ID: id + 1}} },
		"1 steps":                  func(m *Image) { m.Steps = []uint64{1} },
	} {
		m := good
		change(&m)
		table := newTable(t, Config{Name: "t", Dim: 1, Init: Zeros}, plain, noCut)
		if err := table.Restore(7, &m, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
	}
}

// fillSlots makes n rows in each of the slots held.
func fillSlots(t testing.TB, table *Table, n int) {
	t.Helper()
	want, have := n*len(table.Held()), 0
	bySlot := map[uint32][]int64{}
	for id := int64(0); have < want; id++ {
		slot := SlotOf(id)
		if table.slots[slot] != nil && len(bySlot[slot]) < n {
			bySlot[slot] = append(bySlot[slot], id)
			have++
		}
	}
	grads := make([]float32, n*table.cfg.Dim)
	for _, slot := range table.Held() {
		table.Commit(slot, []Share{{bySlot[slot], grads}}, 1, Step{1, 1})
	}
}

// With the rows per slot of a table of ten million, a row of 16 floats takes at most 1.35 times its 64 bytes. That includes id and
// index, also after the index has just grown.
func TestMemoryOfARow(t *testing.T) {
	for _, perSlot := range []int{9766, 12_300} {
		heap := func() uint64 {
			runtime.GC()
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			return m.HeapAlloc
		}
		before := heap()
		const slots = 64 // so that the arena has no chunks left over
		table := New(valid(t, Config{Name: "t", Dim: 16, Init: Zeros}), validRule(t, plain), held(Slots/slots, 0), noCut)
		fillSlots(t, table, perSlot)
		scratches = sync.Pool{New: scratches.New}
		perRow := float64(heap()-before) / float64(slots*perSlot)
		runtime.KeepAlive(table)
		t.Logf("%d rows in a slot: %.1f bytes a row", perSlot, perRow)
		if perRow > 1.35*64 {
			t.Errorf("%d rows in a slot: %.1f bytes a row, expected at most %.1f", perSlot, perRow, 1.35*64)
		}
	}
}

func BenchmarkTable(b *testing.B) {
	for _, rows := range []int{1_000_000, 10_000_000} {
		table := newTable(b, Config{Name: "t", Dim: 16, Init: Uniform, Scale: 0.1}, plain, noCut)
		fillSlots(b, table, rows/Slots)
		began := time.Now()
		runtime.GC()
		b.Logf("%d rows: a forced collection takes %v", rows, time.Since(began))
		r := rand.New(rand.NewPCG(1, 1))
		var batches []Batch
		for range 8 {
			ids := make([]int64, 20_000)
			for k := range ids {
				ids[k] = r.Int64N(int64(rows))
			}
			batch, _ := grouped(ids, make([]float32, 16*len(ids)), 16)
			batches = append(batches, batch)
		}
		name := map[int]string{1_000_000: "1M", 10_000_000: "10M"}[rows]
		report := func(b *testing.B, cpu time.Duration) {
			b.ReportMetric(20_000*float64(b.N)/b.Elapsed().Seconds()/1e6, "Mrows/s")
			b.ReportMetric(float64(cpu)/(20_000*float64(b.N)), "cpu-ns/row")
		}
		dst := make([]float32, 16*20_000)
		b.Run(name+"/lookup", func(b *testing.B) {
			began := processorTime(b)
			for i := 0; b.Loop(); i++ {
				table.Lookup(&batches[i%len(batches)], nil, dst)
			}
			report(b, processorTime(b)-began)
		})
		b.Run(name+"/update", func(b *testing.B) {
			column := trainer(0)
			began := processorTime(b)
			for i := 0; b.Loop(); i++ {
				if _, err := table.Update(&batches[i%len(batches)], column, Step{uint64(i) + 1, 1}, nil); err != nil {
					b.Fatal(err)
				}
			}
			report(b, processorTime(b)-began)
		})
	}
}

// processorTime is what this process has used so far.
func processorTime(b *testing.B) time.Duration {
	var used unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &used); err != nil {
		b.Fatal(err)
	}
	return time.Duration(used.Nano())
}

// An update after a cut is not in the cut, whether pushed or committed.
func TestCutIsAMoment(t *testing.T) {
	var current atomic.Pointer[Cut]
	table, column := newTable(t, Config{Name: "t", Dim: 1, Init: Zeros}, plain, current.Load), trainer(0)
	push := func(step uint64) {
		batch, _ := grouped([]int64{1}, []float32{-1}, 1)
		if _, err := table.Update(&batch, column, Step{step, 1}, nil); err != nil {
			t.Fatal(err)
		}
	}
	push(1)
	for number, change := range []func(){func() { push(2) }, func() { table.Commit(SlotOf(1), []Share{{[]int64{1}, []float32{-1}}}, 1, Step{3, 1}) }} {
		cut := &Cut{Number: uint64(number) + 1, Trainers: []*partition.Trainer{column}}
		current.Store(cut)
		before := lookup(table, []int64{1})[0]
		change()
		m := table.Collect(SlotOf(1), cut)
		if m.Values[0] != before || m.Steps[0] != uint64(number)+1 {
			t.Errorf("cut %d has value %v and step %d, expected %v and %d", number+1, m.Values[0], m.Steps[0], before, number+1)
		}
		current.Store(nil)
		table.EndCut()
	}
}

// idsOf returns n ids of a slot.
func idsOf(slot uint32, n int) (ids []int64) {
	for id := int64(1); len(ids) < n; id++ {
		if SlotOf(id) == slot {
			ids = append(ids, id)
		}
	}
	return ids
}

// A trainer whose steps are behind the others' updates an old row, makes a new row, and counts an update of an id without a row. All
// three live as long as the rows of a fast trainer.
func TestUpdateBySlowTrainerKeepsRow(t *testing.T) {
	table := newTable(t, Config{Name: "t", Dim: 1, Init: Zeros, Expiry: 100}, plain, noCut)
	admits := newTable(t, Config{Name: "a", Dim: 1, Init: Zeros, Expiry: 100, Admission: 2}, plain, noCut)
	fast, slow := map[*Table]*partition.Trainer{table: trainer(0), admits: trainer(0)}, map[*Table]*partition.Trainer{table: trainer(1), admits: trainer(1)}
	ids := idsOf(0, 4)
	update := func(of *Table, c map[*Table]*partition.Trainer, step uint64, id int64) {
		t.Helper()
		r, _ := grouped([]int64{id}, []float32{-1}, 1)
		if n, err := of.Update(&r, c[of], Step{Number: step, Scale: 1}, nil); n != 1 || err != nil {
			t.Fatal(n, err)
		}
	}
	for step, id := range []int64{ids[0], ids[0]} {
		update(table, fast, uint64(1000+20*step), id)
		update(admits, fast, uint64(1000+20*step), id)
	}
	update(table, slow, 1, ids[0])
	update(table, slow, 2, ids[1])
	update(admits, slow, 1, ids[2])
	update(table, fast, 1119, ids[3]) // 99 steps after the updates of the slow trainer
	update(admits, fast, 1119, ids[3])
	update(admits, slow, 2, ids[2])
	if got := lookup(table, ids[:2]); got[0] == 0 || got[1] == 0 {
		t.Errorf("rows 99 steps after their last update: %v, expected no initial values", got)
	}
	if got := lookup(admits, ids[2:3]); got[0] == 0 {
		t.Error("an id had two updates within 99 steps, and has no row")
	}
	update(table, fast, 1200, ids[3])
	if got := lookup(table, ids[:2]); got[0] != 0 || got[1] != 0 {
		t.Errorf("rows 180 steps after their last update: %v, expected initial values", got)
	}
}

// unshift and inverse undo the steps of mix.
func unshift(x uint64, n uint) uint64 {
	r := x
	for range 64 / n {
		r = x ^ r>>n
	}
	return r
}

func inverse(a uint64) uint64 {
	x := a
	for range 6 {
		x *= 2 - a*x
	}
	return x
}

func unmix(x uint64) uint64 {
	x = unshift(x, 31) * inverse(0x94d049bb133111eb)
	x = unshift(x, 27) * inverse(0xbf58476d1ce4e5b9)
	return unshift(x, 30)
}

// Ids that were chosen to share one slot, and one place in its index, are spread over slots and places by a key.
func TestChosenIDsAreSpreadByTheKey(t *testing.T) {
	const n = 20_000
	ids := make([]int64, n)
	for i := range ids {
		ids[i] = int64(unmix(5<<54 | uint64(i)))
	}
	crowd := func(key Key) (slot, index int) {
		slots, places := map[uint32]int{}, map[int]int{}
		for _, id := range ids {
			h := key.hash(id)
			slots[slotOf(h)]++
			places[firstBucket(h, n)]++
		}
		return slices.Max(slices.Collect(maps.Values(slots))), slices.Max(slices.Collect(maps.Values(places)))
	}
	if slot, index := crowd(Key{}); slot != n || index < n/2 {
		t.Fatalf("without a key %d of %d ids share a slot and %d a place: the ids are not well chosen", slot, n, index)
	}
	for _, key := range []Key{{1, 1}, {0xfeedfacecafebeef, 0x0123456789abcdef}, {1 << 63, 1}} {
		if slot, index := crowd(key); slot > 60 || index > 12 { // 20 and 1 in the mean
			t.Errorf("key %x: %d of %d ids share a slot, and %d a place", key, slot, n, index)
		}
		cfg := Config{Name: "t", Dim: 1, Init: Zeros, Key: key}
		table, column := newTable(t, cfg, plain, noCut), trainer(0)
		bySlot := map[uint32][]int64{}
		for _, id := range ids {
			bySlot[cfg.SlotOf(id)] = append(bySlot[cfg.SlotOf(id)], id)
		}
		for slot, ids := range bySlot {
			r := Batch{Spans: []Span{{Slot: slot, Rows: uint32(len(ids))}}, IDs: ids, Values: slices.Repeat([]float32{-1}, len(ids))}
			if err := table.Check(&r); err != nil {
				t.Fatal(err)
			}
			if _, err := table.Update(&r, column, Step{Number: 1, Scale: 1}, nil); err != nil {
				t.Fatal(err)
			}
			got := make([]float32, len(ids))
			if err := table.Lookup(&r, nil, got); err != nil || slices.ContainsFunc(got, func(v float32) bool { return v != 1 }) {
				t.Fatalf("slot %d: %v, %v", slot, got, err)
			}
		}
		if table.Rows() != n {
			t.Errorf("%d rows, expected %d", table.Rows(), n)
		}
	}
}
