package modelfile

import (
	"encoding/binary"
	"io"
	"slices"

	"trainmaster/internal/safetensors"
	"trainmaster/pserver/checkpoint"
	"trainmaster/pserver/floats"
)

// The tensors that a table of embeddings is in a safetensors file, after its name.
const (
	idsSuffix  = ".ids"  // I64 [rows], ascending
	rowsSuffix = ".rows" // F32 [rows, dim]
)

// tableTensors describes what is exported of table k.
func tableTensors(m *checkpoint.Model, k int) ([]safetensors.Info, error) {
	rows, err := m.RowCount(k)
	if err != nil {
		return nil, err
	}
	t := m.Tables()[k]
	infos := []safetensors.Info{
		{Name: t.Name + idsSuffix, DType: safetensors.I64, Shape: []int{rows}},
		{Name: t.Name + rowsSuffix, DType: safetensors.F32, Shape: []int{rows, t.Dim}},
	}
	for _, state := range m.State() {
		infos = append(infos, safetensors.Info{Name: t.Name + "." + state, DType: safetensors.F32, Shape: []int{rows, t.Dim}})
	}
	return infos, nil
}

func exportTable(out io.Writer, m *checkpoint.Model, k int) error {
	rows, err := m.Rows(k)
	if err != nil {
		return err
	}
	var id [8]byte
	for _, i := range rows.IDs {
		binary.LittleEndian.PutUint64(id[:], uint64(i))
		if _, err := out.Write(id[:]); err != nil {
			return err
		}
	}
	for part := range 1 + len(m.State()) {
		for i := range rows.IDs {
			if _, err := out.Write(floats.Bytes(rows.Values(i, part))); err != nil {
				return err
			}
		}
	}
	return nil
}

// TableReport is a table of a set.
type TableReport struct {
	Name string `json:"name"`
	Dim  int    `json:"dim"`
	Rows int    `json:"rows"`
}

func reportTables(m *checkpoint.Model) (list []TableReport, err error) {
	list = []TableReport{}
	for k, t := range m.Tables() {
		rows, err := m.RowCount(k)
		if err != nil {
			return nil, err
		}
		list = append(list, TableReport{t.Name, t.Dim, rows})
	}
	return list, nil
}

// tableRows are the rows of a table in a model, by ascending id.
type tableRows struct {
	ids    []int64
	dim    int
	values func(i int) []float32
}

func (t *tableRows) shape() []int {
	if t == nil {
		return nil
	}
	return []int{len(t.ids), t.dim}
}

// setModel is a set of checkpoints.
type setModel struct{ *checkpoint.Model }

func (m setModel) Tables() (names []string) {
	for _, t := range m.Model.Tables() {
		names = append(names, t.Name)
	}
	return names
}

func (m setModel) ReadTable(name string) (*tableRows, error) {
	k := slices.Index(m.Tables(), name)
	rows, err := m.Rows(k)
	if err != nil {
		return nil, err
	}
	return &tableRows{rows.IDs, m.Model.Tables()[k].Dim, func(i int) []float32 { return rows.Values(i, 0) }}, nil
}

// RowsDiff counts the rows in which two tables differ.
type RowsDiff struct {
	OnlyA  int `json:"only_a"` // ids with a row in this model only
	OnlyB  int `json:"only_b"`
	Differ int `json:"differ"` // ids with other values
}

// diffTables compares a table of two models, id by id; nil: a model has it not.
func diffTables(name string, a, b *tableRows) (d TensorDiff, same bool) {
	d = TensorDiff{Name: name, ShapeA: a.shape(), ShapeB: b.shape()}
	if a == nil || b == nil || a.dim != b.dim {
		return d, false
	}
	d.Rows = &RowsDiff{}
	var all difference
	i, j := 0, 0
	for i < len(a.ids) && j < len(b.ids) {
		switch {
		case a.ids[i] < b.ids[j]:
			d.Rows.OnlyA++
			i++
		case a.ids[i] > b.ids[j]:
			d.Rows.OnlyB++
			j++
		default:
			if !all.add(a.values(i), b.values(j)) {
				d.Rows.Differ++
			}
			i, j = i+1, j+1
		}
	}
	d.Rows.OnlyA += len(a.ids) - i
	d.Rows.OnlyB += len(b.ids) - j
	d.MaxAbs, d.RelativeL2 = all.figures()
	return d, *d.Rows == RowsDiff{}
}

// diffAllTables lists the tables that differ. A table that a model lacks has no shape in the result.
func diffAllTables(a, b Weights) (diffs []TensorDiff, err error) {
	for _, name := range slices.Compact(slices.Sorted(slices.Values(slices.Concat(a.Tables(), b.Tables())))) {
		var of [2]*tableRows
		for i, m := range []Weights{a, b} {
			if slices.Contains(m.Tables(), name) {
				if of[i], err = m.ReadTable(name); err != nil {
					return nil, err
				}
			}
		}
		if d, same := diffTables(name, of[0], of[1]); !same {
			diffs = append(diffs, d)
		}
	}
	return diffs, nil
}
