package checkpoint

import (
	"encoding/binary"
	"path"

	"trainmaster/internal/safetensors"
	"trainmaster/pserver/floats"
	"trainmaster/pserver/optimizer"
	"trainmaster/pserver/table"
)

// TableWriter writes one table of embeddings, slot after slot: a segment with rows, and the slots file.
type TableWriter struct {
	writer   *Writer
	number   int
	cfg      table.Config
	metadata map[string]string

	segment   *Segment
	values    []*File // parameters, then the optimizer's state
	ids       *File
	versions  *File
	updates   *File // nil: not counted
	unchanged *File

	slots    map[string][]uint64 // content of the slots file
	counts   [2][]uint64         // by slot: rows, and bytes of unchanged
	trainers [][]uint64          // applied_steps, by trainer
	floats   []float32
	bytes    []byte
}

// TableSizes are the sums of the sizes of all slots of a table at a cut ([table.Sizes]), and the number of trainers.
type TableSizes struct{ Rows, Unchanged, Trainers int }

// CreateTable starts the next table, number k. full is the segment with the rows that the slots to add leave out, nil if they have all
// rows. Finish must follow.
func (w *Writer) CreateTable(k int, cfg table.Config, o optimizer.Config, sizes TableSizes, full *Segment, metadata map[string]string) (*TableWriter, error) {
	s := &Segment{Name: segmentName(w.generation, k)}
	w.segments = append(w.segments, s)
	if full == nil {
		w.rows = append(w.rows, Rows{Full: s})
	} else {
		w.rows = append(w.rows, Rows{Full: full, Delta: s})
	}
	if err := w.folder.place.Prepare(path.Join(w.folder.name, s.Name)); err != nil {
		return nil, err
	}
	w.folder.Points.Observe("segment directory made")
	t := &TableWriter{writer: w, number: k, cfg: cfg, metadata: metadata, segment: s, slots: map[string][]uint64{}, trainers: make([][]uint64, sizes.Trainers)}
	var err error
	begin := func(part string, dtype safetensors.DType, shape ...int) *File {
		if err != nil {
			return nil
		}
		var f *File
		f, err = w.createIn(s, partFile(part), []safetensors.Info{{Name: cfg.Name + "." + part, DType: dtype, Shape: shape}}, metadata)
		return f
	}
	for _, part := range append([]string{rowsPart}, o.Rule().Slots()...) {
		t.values = append(t.values, begin(part, safetensors.F32, sizes.Rows, cfg.Dim))
	}
	t.ids = begin(idsPart, safetensors.I64, sizes.Rows)
	t.versions = begin(versionsPart, safetensors.U32, sizes.Rows)
	if o.Counted() {
		t.updates = begin(updatesPart, safetensors.U32, sizes.Rows)
	}
	t.unchanged = begin(unchangedPart, safetensors.U8, sizes.Unchanged)
	return t, err
}

// Add writes a slot. Slots must be added in ascending order.
func (t *TableWriter) Add(slot uint32, m *table.Image) error {
	if err := t.write(t.ids, m.IDs); err != nil {
		return err
	}
	if _, err := t.unchanged.Write(m.Unchanged); err != nil {
		return err
	}
	if err := t.write(t.versions, m.Versions); err != nil {
		return err
	}
	if t.updates != nil {
		if err := t.write(t.updates, m.Updates); err != nil {
			return err
		}
	}
	dim := t.cfg.Dim
	width := dim * len(t.values)
	for part, f := range t.values {
		t.floats = t.floats[:0]
		for row := range m.IDs {
			at := row*width + part*dim
			t.floats = append(t.floats, m.Values[at:at+dim]...)
		}
		if _, err := f.Write(floats.Bytes(t.floats)); err != nil {
			return err
		}
	}
	t.noteSlot(slot, m)
	return nil
}

func (t *TableWriter) noteSlot(slot uint32, m *table.Image) {
	t.counts[0] = append(t.counts[0], uint64(len(m.IDs)))
	t.counts[1] = append(t.counts[1], uint64(len(m.Unchanged)))
	note := func(tensor string, value uint64) { t.slots[tensor] = append(t.slots[tensor], value) }
	note(heldSlots, uint64(slot))
	note(slotRows, uint64(m.LiveRows))
	note(slotClocks, uint64(m.Clock))
	note(slotWaiting, uint64(len(m.Candidates)))
	for _, w := range m.Candidates {
		note(waitingIDs, uint64(w.ID))
		note(waitingCount, uint64(w.Updates))
		note(waitingLast, uint64(w.Version))
	}
	for i, step := range m.Steps {
		t.trainers[i] = append(t.trainers[i], step)
	}
}

// write writes a list of numbers.
func (t *TableWriter) write(f *File, numbers any) (err error) {
	if t.bytes, err = binary.Append(t.bytes[:0], binary.LittleEndian, numbers); err == nil {
		_, err = f.Write(t.bytes)
	}
	return err
}

// Finish writes the counts of the segment, and the slots file.
func (t *TableWriter) Finish() error {
	slots := len(t.slots[heldSlots])
	counts := fromUint64(t.cfg.Name+"."+countsPart, append(t.counts[0], t.counts[1]...), len(t.counts), slots)
	if err := t.writer.small(t.segment, partFile(countsPart), []safetensors.Tensor{counts}, t.metadata); err != nil {
		return err
	}
	var list []safetensors.Tensor
	for _, name := range []string{heldSlots, slotRows, slotClocks, slotWaiting, waitingIDs, waitingCount, waitingLast} {
		list = append(list, fromUint64(name, t.slots[name], len(t.slots[name])))
	}
	var steps []uint64
	for _, s := range t.trainers {
		steps = append(steps, s...)
	}
	list = append(list, fromUint64(slotSteps, steps, len(t.trainers), slots))
	return t.writer.small(&t.writer.own, slotsFile(t.number), list, t.metadata)
}
