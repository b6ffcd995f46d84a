package table

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"

	"trainmaster/pserver/optimizer"
	"trainmaster/pserver/partition"
)

// deltaModel takes cuts of a table and of a naive table. A cut is kept, dropped before or during its collection, or collected and
// then lost, as a checkpoint whose files cannot be written. Pushes continue between any two slots.
type deltaModel struct {
	*testing.T
	r       *rand.Rand
	cfg     Config
	o       optimizer.Config
	current atomic.Pointer[Cut]
	table   *Table
	want    *naive
	column  *partition.Trainer
	ids     []int64
	step    uint64

	number        uint64 // of the last cut
	fullCut       *Cut   // the last full cut that was kept; nil: none
	full          map[uint32]*Image
	wraps, deltas int
}

func (m *deltaModel) push() {
	m.step++
	n := 1 + m.r.IntN(6)
	ids, grads := make([]int64, n), make([]float32, n*m.cfg.Dim)
	for k := range ids {
		ids[k] = m.ids[m.r.IntN(1+m.r.IntN(len(m.ids)))]
	}
	for i := range grads {
		grads[i] = float32(m.r.NormFloat64())
	}
	batch, _ := grouped(ids, slices.Clone(grads), m.cfg.Dim)
	m.want.push(ids, grads, m.column, m.step, 1)
	if _, err := m.table.Update(&batch, m.column, Step{m.step, 1}, nil); err != nil {
		m.Fatal(err)
	}
}

// state describes all rows and candidates of the naive table.
func (m *deltaModel) state() map[int64]string {
	list := map[int64]string{}
	for id, r := range m.want.rows {
		list[id] = fmt.Sprint(r.params, r.version)
	}
	for id, r := range m.want.waiting {
		list[id] = fmt.Sprint("waits ", r.updates, r.version)
	}
	return list
}

func restoredState(t *Table) map[int64]string {
	list := map[int64]string{}
	for _, number := range t.held {
		s := t.slots[number]
		for row := range s.end {
			if r := s.at(row); *r.version() != 0 {
				list[r.id()] = fmt.Sprint(t.arena.floats(r)[:t.cfg.Dim], *r.version())
			}
		}
		for id, c := range s.candidates {
			list[id] = fmt.Sprint("waits ", c.updates, c.version)
		}
	}
	return list
}

func (m *deltaModel) cut(ending string, isFull bool) {
	m.number++
	c := &Cut{Number: m.number, Since: m.fullCut, Trainers: []*partition.Trainer{m.column}}
	if far := c.Since != nil && m.number-c.Since.Number > MaxDistance; isFull || far {
		c.Since = nil
		if far {
			m.wraps++
		}
	}
	m.current.Store(c)
	defer func() {
		m.current.Store(nil)
		m.table.EndCut()
	}()
	at, steps := m.state(), m.step
	images := map[uint32]*Image{}
	for _, slot := range m.table.Held() {
		for m.r.IntN(2) == 0 {
			m.push()
		}
		if ending == "dropped" && m.r.IntN(2) == 0 {
			return
		}
		images[slot] = m.table.Collect(slot, c)
	}
	if ending != "kept" {
		return
	}
	if c.Since == nil {
		m.fullCut, m.full = c, images
	} else {
		m.deltas++
	}
	again := New(m.cfg, m.o, m.table.Held(), noCut)
	for _, slot := range again.Held() {
		if c.Since != nil {
			if err := again.Restore(slot, m.full[slot], []*partition.Trainer{trainer(0)}); err != nil {
				m.Fatalf("full cut: %t, cut %d, at step %d: full cut: %v", c.Since == nil, c.Number, steps, err)
			}
		}
		if err := again.Restore(slot, images[slot], []*partition.Trainer{trainer(0)}); err != nil {
			m.Fatalf("full cut: %t, cut %d, at step %d: %v", c.Since == nil, c.Number, steps, err)
		}
	}
	got := restoredState(again)
	for id, want := range at {
		if got[id] != want {
			m.Fatalf("full cut: %t, cut %d, at step %d: id %d is %q, expected %q", c.Since == nil, c.Number, steps, id, got[id], want)
		}
	}
	if len(got) != len(at) {
		m.Fatalf("full cut: %t, cut %d, at step %d: %d ids, expected %d", c.Since == nil, c.Number, steps, len(got), len(at))
	}
}

// A full cut and a later delta restore the table at the cut of the delta, whatever became of the cuts between: no change is missing,
// also when the numbers of cuts exceed a byte.
func TestDeltaHasAllChangesSinceFullCut(t *testing.T) {
	for _, cfg := range []Config{
		{Name: "plain", Dim: 2, Init: Uniform, Scale: 1},
		{Name: "expires", Dim: 2, Init: Uniform, Scale: 1, Expiry: 40, Admission: 2},
	} {
		for seed := range uint64(4) {
			t.Run(fmt.Sprint(cfg.Name, seed), func(t *testing.T) {
				cfg, o := valid(t, cfg), validRule(t, optimizer.Config{Kind: optimizer.Adam})
				m := &deltaModel{T: t, r: rand.New(rand.NewPCG(seed, 8)), cfg: cfg, o: o, want: newNaive(cfg, o), column: trainer(0)}
				m.table = New(cfg, o, []uint32{3, 500, 1023}, m.current.Load)
				m.ids = universe(m.r, 40)
				for range 1500 {
					for range m.r.IntN(4) {
						m.push()
					}
					ending := []string{"kept", "dropped", "failed"}[m.r.IntN(3)]
					m.cut(ending, m.r.IntN(400) == 0)
				}
				if m.wraps == 0 || m.deltas < 300 {
					t.Errorf("%d full cuts since the number wrapped, %d deltas: the test covers too little", m.wraps, m.deltas)
				}
			})
		}
	}
}
