package checkpoint

import (
	"encoding/binary"

	"trainmaster/internal/safetensors"
	"trainmaster/pserver/optimizer"
	"trainmaster/pserver/table"
	"trainmaster/pserver/wire"
)

// TableWriter writes the files of one table of embeddings, slot after slot.
type TableWriter struct {
	writer   *Writer
	number   int
	cfg      table.Config
	metadata map[string]string

	values   []*File // parameters, then the optimizer's state
	ids      *File
	versions *File
	updates  *File // nil: not counted

	slots    map[string][]uint64 // content of the slots file
	trainers [][]uint64          // applied_steps, by trainer
	floats   []float32
	bytes    []byte
}

// CreateTable starts the files of table k with the given number of rows. Finish must follow.
func (w *Writer) CreateTable(k int, cfg table.Config, o optimizer.Config, rows, trainers int, metadata map[string]string) (*TableWriter, error) {
	t := &TableWriter{writer: w, number: k, cfg: cfg, metadata: metadata, slots: map[string][]uint64{}, trainers: make([][]uint64, trainers)}
	var err error
	begin := func(what string, dtype safetensors.DType, shape ...int) *File {
		if err != nil {
			return nil
		}
		var f *File
		f, err = w.Create(tableFile(k, what), []safetensors.Info{{Name: cfg.Name + "." + what, DType: dtype, Shape: shape}}, metadata)
		return f
	}
	for _, part := range append([]string{rowsFile}, o.Rule().Slots()...) {
		t.values = append(t.values, begin(part, safetensors.F32, rows, cfg.Dim))
	}
	t.ids = begin(idsFile, safetensors.I64, rows)
	t.versions = begin(versionsFile, safetensors.U32, rows)
	if o.Counted() {
		t.updates = begin(updatesFile, safetensors.U32, rows)
	}
	return t, err
}

// Add writes a slot. Slots must be added in ascending order.
func (t *TableWriter) Add(slot uint32, m *table.Image) error {
	t.bytes = t.bytes[:0]
	for _, id := range m.IDs {
		t.bytes = binary.LittleEndian.AppendUint64(t.bytes, uint64(id))
	}
	if _, err := t.ids.Write(t.bytes); err != nil {
		return err
	}
	if err := t.writeUint32(t.versions, m.Versions); err != nil {
		return err
	}
	if t.updates != nil {
		if err := t.writeUint32(t.updates, m.Updates); err != nil {
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
		if _, err := f.Write(wire.FloatBytes(t.floats)); err != nil {
			return err
		}
	}
	t.noteSlot(slot, m)
	return nil
}

func (t *TableWriter) noteSlot(slot uint32, m *table.Image) {
	note := func(tensor string, value uint64) { t.slots[tensor] = append(t.slots[tensor], value) }
	note(heldSlots, uint64(slot))
	note(slotRows, uint64(len(m.IDs)))
	note(slotLiving, uint64(m.LiveRows))
	note(slotClocks, uint64(m.Clock))
	note(slotFreed, uint64(len(m.Freed)))
	for _, id := range m.Freed {
		note(freedIDs, uint64(id))
	}
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

func (t *TableWriter) writeUint32(f *File, values []uint32) error {
	t.bytes = t.bytes[:0]
	for _, v := range values {
		t.bytes = binary.LittleEndian.AppendUint32(t.bytes, v)
	}
	_, err := f.Write(t.bytes)
	return err
}

// Finish writes the slots file.
func (t *TableWriter) Finish() error {
	var list []safetensors.Tensor
	for _, name := range []string{
		heldSlots, slotRows, slotLiving, slotClocks, slotFreed, freedIDs, slotWaiting, waitingIDs, waitingCount, waitingLast,
	} {
		list = append(list, fromUint64(name, t.slots[name], len(t.slots[name])))
	}
	var steps []uint64
	for _, s := range t.trainers {
		steps = append(steps, s...)
	}
	list = append(list, fromUint64(slotSteps, steps, len(t.trainers), len(t.slots[heldSlots])))
	return t.writer.small(tableFile(t.number, slotsFile), list, t.metadata)
}
