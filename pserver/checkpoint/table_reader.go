package checkpoint

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"

	"trainmaster/internal/safetensors"
	"trainmaster/pserver/floats"
	"trainmaster/pserver/partition"
	"trainmaster/pserver/table"
)

// Table restores the slots of table k that the checkpoint contains and the table holds, and returns their number. trainers are
// those of [Checkpoint.Marks]; without trainers the applied steps are skipped.
func (c *Checkpoint) Table(k int, into *table.Table, trainers []*partition.Trainer) (slots int, err error) {
	rows := c.Manifest.Rows[k]
	segments := rows.Segments()
	for i, s := range segments {
		if i == len(segments)-1 {
			slots, err = c.readTable(k, s, into, trainers, true)
		} else {
			_, err = c.readTable(k, s, into, nil, false)
		}
		if err != nil {
			return 0, fmt.Errorf("segment %s: %w", s.Name, err)
		}
	}
	return slots, nil
}

// TableRows is how many rows of table k the shard has.
func (c *Checkpoint) TableRows(k int) (n int, err error) {
	r := &tableReader{held: c.Share.Table.HeldSlots(k, c.Manifest.Shard)}
	if err := r.readSlots(c.files, slotsFile(k)); err != nil {
		return 0, err
	}
	return r.total(slotRows), nil
}

// tableReader reads the files of one segment, slot after slot.
type tableReader struct {
	dim   int
	held  []uint32
	files []io.Closer

	values    []*io.SectionReader // parameters, then the optimizer's state
	ids       *io.SectionReader
	versions  *io.SectionReader
	updates   *io.SectionReader // nil: not counted
	unchanged *io.SectionReader
	counts    []uint64 // rows of each slot, then bytes of unchanged of each slot

	slots    map[string][]uint64 // of the slots file; nil: not read
	trainers int
}

// readTable restores the rows of a segment. The last segment of a table comes with the slots file.
func (c *Checkpoint) readTable(k int, s *Segment, into *table.Table, trainers []*partition.Trainer, last bool) (slots int, err error) {
	r := &tableReader{dim: into.Config().Dim, held: c.Share.Table.HeldSlots(k, c.Manifest.Shard)}
	defer r.close()
	if err := r.open(c, k, s); err != nil {
		return 0, err
	}
	if last {
		if err := r.readSlots(c.files, slotsFile(k)); err != nil {
			return 0, err
		}
	}
	for i, slot := range r.held {
		if !slices.Contains(into.Held(), slot) {
			if err := r.skip(i); err != nil {
				return 0, err
			}
			continue
		}
		image, err := r.next(i)
		if err != nil {
			return 0, fmt.Errorf("table %q, slot %d: %w", into.Config().Name, slot, err)
		}
		if trainers == nil {
			image.Steps = nil
		}
		if err := into.Restore(slot, image, trainers); err != nil {
			return 0, err
		}
		slots++
	}
	return slots, nil
}

func (r *tableReader) close() {
	for _, f := range r.files {
		f.Close()
	}
}

// open checks the shapes of all files.
func (r *tableReader) open(c *Checkpoint, k int, s *Segment) error {
	from, name := c.within(s.Name), c.Share.Table.Sparse[k].Name
	var errs []error
	begin := func(part string, dtype safetensors.DType, shape ...int) *io.SectionReader {
		data, err := r.tensor(from, partFile(part), safetensors.Info{Name: name + "." + part, DType: dtype, Shape: shape})
		errs = append(errs, err)
		return data
	}
	counts := begin(countsPart, safetensors.U64, 2, len(r.held))
	if err := errs[0]; err != nil {
		return err
	}
	var err error
	if r.counts, err = readNumbers[uint64](counts, 2*len(r.held)); err != nil {
		return err
	}
	var totals [2]int
	for i, n := range r.counts {
		if n > math.MaxInt32 {
			return fmt.Errorf("%s: slot %d has %d rows", partFile(countsPart), r.held[i%len(r.held)], n)
		}
		totals[i/len(r.held)] += int(n)
	}
	rows := totals[0]
	for _, part := range append([]string{rowsPart}, c.Slots...) {
		r.values = append(r.values, begin(part, safetensors.F32, rows, r.dim))
	}
	r.ids = begin(idsPart, safetensors.I64, rows)
	r.versions = begin(versionsPart, safetensors.U32, rows)
	if c.Manifest.Optimizer.Counted() {
		r.updates = begin(updatesPart, safetensors.U32, rows)
	}
	r.unchanged = begin(unchangedPart, safetensors.U8, totals[1])
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
func (r *tableReader) readSlots(from files, name string) error {
	held := r.held
	tensors, err := from.all(name)
	if err != nil {
		return err
	}
	r.slots = map[string][]uint64{}
	for _, t := range tensors {
		if t.DType != safetensors.U64 {
			return fmt.Errorf("%s: tensor %q has dtype %s: expected %s", name, t.Name, t.DType, safetensors.U64)
		}
		r.slots[t.Name] = toUint64(t)
		if t.Name == slotSteps && len(t.Shape) == 2 {
			r.trainers = t.Shape[0]
		}
	}
	for tensor, want := range map[string]int{
		heldSlots: len(held), slotRows: len(held), slotClocks: len(held), slotWaiting: len(held),
		waitingIDs: r.total(slotWaiting), waitingCount: r.total(slotWaiting), waitingLast: r.total(slotWaiting),
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
func (r *tableReader) next(i int) (m *table.Image, err error) {
	n := int(r.counts[i])
	m = &table.Image{LiveRows: n, Values: make([]float32, n*r.dim*len(r.values))}
	if m.IDs, err = readNumbers[int64](r.ids, n); err != nil {
		return nil, err
	}
	m.Unchanged = make([]byte, r.counts[len(r.held)+i])
	if _, err := io.ReadFull(r.unchanged, m.Unchanged); err != nil {
		return nil, err
	}
	if m.Versions, err = readNumbers[uint32](r.versions, n); err != nil {
		return nil, err
	}
	if r.updates != nil {
		if m.Updates, err = readNumbers[uint32](r.updates, n); err != nil {
			return nil, err
		}
	}
	part := make([]float32, n*r.dim)
	for p, from := range r.values {
		if _, err := io.ReadFull(from, floats.Bytes(part)); err != nil {
			return nil, err
		}
		for row := range n {
			copy(m.Values[(row*len(r.values)+p)*r.dim:], part[row*r.dim:(row+1)*r.dim])
		}
	}
	if r.slots != nil {
		r.takeSlot(i, m)
	}
	return m, nil
}

// takeSlot reads the numbers of the i-th slot from the slots file.
func (r *tableReader) takeSlot(i int, m *table.Image) {
	m.Clock, m.LiveRows = uint32(r.slots[slotClocks][i]), int(r.slots[slotRows][i])
	candidates := int(r.slots[slotWaiting][i])
	of, counts, last := r.take(waitingIDs, candidates), r.take(waitingCount, candidates), r.take(waitingLast, candidates)
	for k := range of {
		m.Candidates = append(m.Candidates, table.Candidate{ID: int64(of[k]), Updates: uint32(counts[k]), Version: uint32(last[k])})
	}
	for t := range r.trainers {
		m.Steps = append(m.Steps, r.slots[slotSteps][t*len(r.held)+i])
	}
}

// skip passes over the i-th slot.
func (r *tableReader) skip(i int) error {
	var errs []error
	pass := func(from *io.SectionReader, count, bytes int) {
		_, err := from.Seek(int64(count)*int64(bytes), io.SeekCurrent)
		errs = append(errs, err)
	}
	rows := int(r.counts[i])
	for _, from := range r.values {
		pass(from, rows, 4*r.dim)
	}
	pass(r.ids, rows, 8)
	pass(r.unchanged, int(r.counts[len(r.held)+i]), 1)
	pass(r.versions, rows, 4)
	if r.updates != nil {
		pass(r.updates, rows, 4)
	}
	if r.slots != nil {
		r.takeSlot(i, &table.Image{})
	}
	return errors.Join(errs...)
}

// take removes the first n of a list.
func (r *tableReader) take(name string, n int) []uint64 {
	list := r.slots[name]
	r.slots[name] = list[n:]
	return list[:n]
}

// readNumbers reads n little-endian numbers.
func readNumbers[T uint32 | uint64 | int64](from io.Reader, n int) ([]T, error) {
	values := make([]T, n)
	return values, binary.Read(from, binary.LittleEndian, values)
}
