package checkpoint

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"trainmaster/internal/safetensors"
	"trainmaster/pserver/table"
	"trainmaster/pserver/wire"
)

// Table restores the slots of table k that the checkpoint contains and the table holds, and returns their number. columns are the
// columns of the trainers, as in [Checkpoint.Marks]; without columns the applied steps are skipped.
func (c *Checkpoint) Table(k int, into *table.Table, columns []*table.Column) (slots int, err error) {
	before := into.Rows()
	if c.base != nil {
		if _, _, err := c.base.readTable(k, into, nil); err != nil {
			return 0, fmt.Errorf("checkpoint %v, which it is based on: %w", c.base.Manifest.Generation, err)
		}
	}
	slots, living, err := c.readTable(k, into, columns)
	if got := into.Rows() - before; err == nil && got != living {
		err = fmt.Errorf("table %q has %d rows: %s says %d", into.Config().Name, got, tableFile(k, slotsFile), living)
	}
	return slots, err
}

// TableRows is how many rows of table k the shard has.
func (c *Checkpoint) TableRows(k int) (n int, err error) {
	r := &tableReader{}
	if err := r.readSlots(c.files, tableFile(k, slotsFile), c.Share.Table.HeldSlots(k, c.Manifest.Shard)); err != nil {
		return 0, err
	}
	return r.total(slotLiving), nil
}

// tableReader reads the files of one table, slot after slot.
type tableReader struct {
	dim   int
	files []io.Closer

	values   []*io.SectionReader // parameters, then the optimizer's state
	ids      *io.SectionReader
	versions *io.SectionReader
	updates  *io.SectionReader // nil: not counted

	slots    map[string][]uint64
	trainers int
}

// readTable restores the files of this checkpoint, without its base. living is the number of rows that the slots must have
// afterwards.
func (c *Checkpoint) readTable(k int, into *table.Table, columns []*table.Column) (slots, living int, err error) {
	r := &tableReader{dim: into.Config().Dim}
	defer r.close()
	held := c.Share.Table.HeldSlots(k, c.Manifest.Shard)
	if err := r.open(c, k, held); err != nil {
		return 0, 0, err
	}
	for i, slot := range held {
		if !slices.Contains(into.Held(), slot) {
			if err := r.skip(i); err != nil {
				return 0, 0, err
			}
			continue
		}
		image, err := r.next(i)
		if err != nil {
			return 0, 0, fmt.Errorf("table %q, slot %d: %w", into.Config().Name, slot, err)
		}
		if columns == nil {
			image.Steps = nil
		}
		if err := into.Restore(slot, image, columns); err != nil {
			return 0, 0, err
		}
		slots, living = slots+1, living+image.LiveRows
	}
	return slots, living, nil
}

func (r *tableReader) close() {
	for _, f := range r.files {
		f.Close()
	}
}

// open reads the slots file and checks the shapes of all others.
func (r *tableReader) open(c *Checkpoint, k int, held []uint32) error {
	if err := r.readSlots(c.files, tableFile(k, slotsFile), held); err != nil {
		return err
	}
	name, rows := c.Share.Table.Sparse[k].Name, r.total(slotRows)
	var errs []error
	begin := func(what string, dtype safetensors.DType, shape ...int) *io.SectionReader {
		data, err := r.tensor(c.files, tableFile(k, what), safetensors.Info{Name: name + "." + what, DType: dtype, Shape: shape})
		errs = append(errs, err)
		return data
	}
	for _, part := range append([]string{rowsFile}, c.Slots...) {
		r.values = append(r.values, begin(part, safetensors.F32, rows, r.dim))
	}
	r.ids = begin(idsFile, safetensors.I64, rows)
	r.versions = begin(versionsFile, safetensors.U32, rows)
	if c.Manifest.Optimizer.Counted() {
		r.updates = begin(updatesFile, safetensors.U32, rows)
	}
	return errors.Join(errs...)
}

// tensor opens the only tensor of a file.
func (r *tableReader) tensor(from files, name string, want safetensors.Info) (*io.SectionReader, error) {
	f, file, err := from.tensors(name)
	if err != nil {
		return nil, err
	}
	r.files = append(r.files, file)
	if got := f.Infos(); len(got) != 1 || got[0].Name != want.Name || got[0].DType != want.DType || !slices.Equal(got[0].Shape, want.Shape) {
		return nil, fmt.Errorf("%s has %v: expected %q, %s %v", name, got, want.Name, want.DType, want.Shape)
	}
	return f.Open(want.Name)
}

// readSlots reads the slots file and checks that its parts fit each other, and the slots held.
func (r *tableReader) readSlots(from files, name string, held []uint32) error {
	tensors, err := from.all(name)
	if err != nil {
		return err
	}
	r.slots = map[string][]uint64{}
	for _, t := range tensors {
		if t.DType != safetensors.U64 {
			return fmt.Errorf("%s: tensor %q has dtype %s: expected %s", name, t.Name, t.DType, safetensors.U64)
		}
		for at := 0; at < len(t.Data); at += 8 {
			r.slots[t.Name] = append(r.slots[t.Name], binary.LittleEndian.Uint64(t.Data[at:]))
		}
		if t.Name == slotSteps && len(t.Shape) == 2 {
			r.trainers = t.Shape[0]
		}
	}
	for tensor, want := range map[string]int{
		heldSlots: len(held), slotRows: len(held), slotLiving: len(held), slotClocks: len(held), slotFreed: len(held), slotWaiting: len(held),
		freedIDs: r.total(slotFreed), waitingIDs: r.total(slotWaiting), waitingCount: r.total(slotWaiting), waitingLast: r.total(slotWaiting),
		slotSteps: r.trainers * len(held),
	} {
		if got := len(r.slots[tensor]); got != want {
			return fmt.Errorf("%s: tensor %q has %d elements: expected %d", name, tensor, got, want)
		}
	}
	for i, slot := range held {
		if r.slots[heldSlots][i] != uint64(slot) {
			return fmt.Errorf("%s has slot %d: expected slot %d", name, r.slots[heldSlots][i], slot)
		}
	}
	return nil
}

func (r *tableReader) total(name string) (n int) {
	for _, v := range r.slots[name] {
		n += int(v)
	}
	return n
}

// next reads the i-th slot; slots are read, or skipped, in order.
func (r *tableReader) next(i int) (*table.Image, error) {
	n := int(r.slots[slotRows][i])
	m := &table.Image{
		Clock: uint32(r.slots[slotClocks][i]), LiveRows: int(r.slots[slotLiving][i]),
		IDs: make([]int64, n), Values: make([]float32, n*r.dim*len(r.values)),
	}
	ids := make([]byte, 8*n)
	if _, err := io.ReadFull(r.ids, ids); err != nil {
		return nil, err
	}
	for k := range m.IDs {
		m.IDs[k] = int64(binary.LittleEndian.Uint64(ids[8*k:]))
	}
	var err error
	if m.Versions, err = readUint32(r.versions, n); err != nil {
		return nil, err
	}
	if r.updates != nil {
		if m.Updates, err = readUint32(r.updates, n); err != nil {
			return nil, err
		}
	}
	part := make([]float32, n*r.dim)
	for p, from := range r.values {
		if _, err := io.ReadFull(from, wire.FloatBytes(part)); err != nil {
			return nil, err
		}
		for row := range n {
			copy(m.Values[(row*len(r.values)+p)*r.dim:], part[row*r.dim:(row+1)*r.dim])
		}
	}
	r.takeSlot(i, m)
	return m, nil
}

// takeSlot reads the numbers of the i-th slot from the slots file.
func (r *tableReader) takeSlot(i int, m *table.Image) {
	for _, id := range r.take(freedIDs, int(r.slots[slotFreed][i])) {
		m.Freed = append(m.Freed, int64(id))
	}
	waiting := int(r.slots[slotWaiting][i])
	of, counts, last := r.take(waitingIDs, waiting), r.take(waitingCount, waiting), r.take(waitingLast, waiting)
	for k := range of {
		m.Candidates = append(m.Candidates, table.Candidate{ID: int64(of[k]), Updates: uint32(counts[k]), Version: uint32(last[k])})
	}
	for t := range r.trainers {
		m.Steps = append(m.Steps, r.slots[slotSteps][t*len(r.slots[heldSlots])+i])
	}
}

// skip passes over the i-th slot.
func (r *tableReader) skip(i int) error {
	rows := int64(r.slots[slotRows][i])
	var errs []error
	pass := func(from *io.SectionReader, bytes int64) {
		_, err := from.Seek(rows*bytes, io.SeekCurrent)
		errs = append(errs, err)
	}
	for _, from := range r.values {
		pass(from, int64(4*r.dim))
	}
	pass(r.ids, 8)
	pass(r.versions, 4)
	if r.updates != nil {
		pass(r.updates, 4)
	}
	r.takeSlot(i, &table.Image{})
	return errors.Join(errs...)
}

// take removes the first n of a list.
func (r *tableReader) take(name string, n int) []uint64 {
	list := r.slots[name]
	r.slots[name] = list[n:]
	return list[:n]
}

func readUint32(from io.Reader, n int) ([]uint32, error) {
	data := make([]byte, 4*n)
	if _, err := io.ReadFull(from, data); err != nil {
		return nil, err
	}
	values := make([]uint32, n)
	for i := range values {
		values[i] = binary.LittleEndian.Uint32(data[4*i:])
	}
	return values, nil
}
