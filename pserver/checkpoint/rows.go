package checkpoint

import (
	"cmp"
	"fmt"
	"slices"

	"trainmaster/pserver/table"
)

// TableRows are all rows of a table, of all shards together.
type TableRows struct {
	IDs []int64 // ascending

	dim    int
	parts  int // slices of a row: parameters, then the optimizer's state
	images []*table.Image
	places []rowPosition // by id
}

// rowPosition is the position of a row in the images.
type rowPosition struct{ image, row int }

// Values returns the values of the i-th id, dim floats: part 0 is the parameters, the other parts are the optimizer state.
func (r *TableRows) Values(i, part int) []float32 {
	at := (r.places[i].row*r.parts + part) * r.dim
	return r.images[r.places[i].image].Values[at : at+r.dim]
}

// Tables describes the tables of embeddings.
func (m *Model) Tables() []table.Config { return m.parts[0].Share.Table.Sparse }

// RowCount is the number of rows of table k.
func (m *Model) RowCount(k int) (n int, err error) {
	for _, part := range m.parts {
		more, err := part.TableRows(k)
		if err != nil {
			return 0, err
		}
		n += more
	}
	return n, nil
}

// Rows reads table k, with the optimizer's state, into memory.
func (m *Model) Rows(k int) (*TableRows, error) {
	slots := make([]uint32, table.Slots)
	for i := range slots {
		slots[i] = uint32(i)
	}
	cfg := m.Tables()[k]
	t := table.New(cfg, m.parts[0].Manifest.Optimizer, slots, func() *table.Cut { return nil })
	read := 0
	for _, part := range m.parts {
		n, err := part.Table(k, t, nil)
		if err != nil {
			return nil, err
		}
		read += n
	}
	if read != len(slots) {
		return nil, fmt.Errorf("table %q: the shards have %d of %d slots", cfg.Name, read, len(slots))
	}
	r := &TableRows{dim: cfg.Dim, parts: 1 + len(m.parts[0].Slots)}
	all := &table.Cut{Number: 1}
	for _, slot := range slots {
		image := t.Collect(slot, all)
		for row := range image.IDs {
			r.places = append(r.places, rowPosition{len(r.images), row})
		}
		r.images = append(r.images, image)
	}
	id := func(p rowPosition) int64 { return r.images[p.image].IDs[p.row] }
	slices.SortFunc(r.places, func(a, b rowPosition) int { return cmp.Compare(id(a), id(b)) })
	for _, p := range r.places {
		r.IDs = append(r.IDs, id(p))
	}
	return r, nil
}
