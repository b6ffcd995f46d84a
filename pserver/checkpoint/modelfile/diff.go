package modelfile

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"slices"
	"strings"

	"trainmaster/internal/safetensors"
	"trainmaster/pserver/checkpoint"
	"trainmaster/pserver/checkpoint/storage"
)

// TensorDiff is how a tensor differs between two models.
type TensorDiff struct {
	Name   string `json:"name"`
	ShapeA []int  `json:"shape_a"` // null: not in this model
	ShapeB []int  `json:"shape_b"`
	// Of equal shapes only, and null where it is no number.
	MaxAbs     *float64 `json:"max_abs"`     // the largest |a - b| of an element
	RelativeL2 *float64 `json:"relative_l2"` // ‖a - b‖₂ / ‖a‖₂
	// Of tables of embeddings with rows of the same size: those above are of the ids that both have.
	Rows *RowsDiff `json:"rows"`
}

// Weights are the tensors of a model, all of float32, and its tables.
type Weights interface {
	Tensors() []safetensors.Info // except the tensors of tables
	Read(name string) ([]float32, error)
	Tables() []string
	ReadTable(name string) (*tableRows, error)
}

// OpenWeights opens a set of checkpoints or a safetensors file.
func OpenWeights(ctx context.Context, arg string) (m Weights, done func(), err error) {
	if strings.HasSuffix(arg, ".safetensors") && !storage.IsURL(arg) {
		return openSafetensors(arg)
	}
	store, _, parts, err := OpenSet(ctx, arg)
	if err != nil {
		return nil, nil, err
	}
	return setModel{checkpoint.Join(parts, false)}, func() { store.Place.Close() }, nil
}

// fileModel is a safetensors file.
type fileModel struct {
	*safetensors.File
	turned []string // names of transposed tensors
}

func openSafetensors(path string) (Weights, func(), error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, err
	}
	stat, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	file, err := safetensors.NewFile(f, stat.Size())
	if err != nil {
		f.Close()
		return nil, nil, fmt.Errorf("%s: %w", path, err)
	}
	m := fileModel{File: file}
	if list := file.Metadata[transposedKey]; list != "" {
		if err := json.Unmarshal([]byte(list), &m.turned); err != nil {
			f.Close()
			return nil, nil, fmt.Errorf("%s: metadata %q: expected a JSON list of names: %w", path, transposedKey, err)
		}
		for _, t := range file.Infos() {
			if slices.Contains(m.turned, t.Name) && len(t.Shape) != 2 {
				f.Close()
				return nil, nil, fmt.Errorf("%s: metadata %q: expected tensors of 2 dimensions, %q has %d", path, transposedKey, t.Name, len(t.Shape))
			}
		}
	}
	return m, func() { f.Close() }, nil
}

// Tensors returns all tensors except the tensors of tables.
func (m fileModel) Tensors() (infos []safetensors.Info) {
	tables := m.Tables()
	for _, i := range m.Infos() {
		ids, isIDs := strings.CutSuffix(i.Name, idsSuffix)
		rows, isRows := strings.CutSuffix(i.Name, rowsSuffix)
		if isIDs && slices.Contains(tables, ids) || isRows && slices.Contains(tables, rows) {
			continue
		}
		if m.isTransposed(i) {
			i.Shape = []int{i.Shape[1], i.Shape[0]}
		}
		infos = append(infos, i)
	}
	return infos
}

func (m fileModel) info(name string) (info safetensors.Info, found bool) {
	at := slices.IndexFunc(m.Infos(), func(i safetensors.Info) bool { return i.Name == name })
	if at < 0 {
		return info, false
	}
	return m.Infos()[at], true
}

func (m fileModel) Read(name string) ([]float32, error) {
	r, err := m.Open(name)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(r)
	if err != nil {
		return nil, err
	}
	info, _ := m.info(name)
	values, err := safetensors.Tensor{Info: info, Data: data}.Float32()
	if err == nil && m.isTransposed(info) {
		values = transposed(values, info.Shape[0], info.Shape[1])
	}
	return values, err
}

// isTransposed reports whether a tensor of the file was transposed when it was exported.
func (m fileModel) isTransposed(t safetensors.Info) bool { return slices.Contains(m.turned, t.Name) }

// Diff lists the tensors and tables in which two models differ.
func Diff(a, b Weights) ([]TensorDiff, error) {
	shapes := func(m Weights) map[string][]int {
		of := map[string][]int{}
		for _, t := range m.Tensors() {
			of[t.Name] = append([]int{}, t.Shape...)
		}
		return of
	}
	inA, inB := shapes(a), shapes(b)
	names := slices.Sorted(maps.Keys(inA))
	for _, name := range slices.Sorted(maps.Keys(inB)) {
		if inA[name] == nil {
			names = append(names, name)
		}
	}
	diffs := []TensorDiff{}
	for _, name := range names {
		d := TensorDiff{Name: name, ShapeA: inA[name], ShapeB: inB[name]}
		if d.ShapeA == nil || d.ShapeB == nil || !slices.Equal(d.ShapeA, d.ShapeB) {
			diffs = append(diffs, d)
			continue
		}
		x, err := a.Read(name)
		if err != nil {
			return nil, err
		}
		y, err := b.Read(name)
		if err != nil {
			return nil, err
		}
		var all difference
		if same := all.add(x, y); !same {
			d.MaxAbs, d.RelativeL2 = all.figures()
			diffs = append(diffs, d)
		}
	}
	tables, err := diffAllTables(a, b)
	return append(diffs, tables...), err
}

// difference sums up the elements compared so far.
type difference struct{ largest, squares, norm float64 }

// add compares more of them.
func (d *difference) add(a, b []float32) (same bool) {
	same = true
	for i := range a {
		same = same && (a[i] == b[i] || math.Float32bits(a[i]) == math.Float32bits(b[i]))
		delta := math.Abs(float64(a[i]) - float64(b[i]))
		d.largest = max(d.largest, delta)
		d.squares += delta * delta
		d.norm += float64(a[i]) * float64(a[i])
	}
	return same
}

func (d *difference) figures() (maxAbs, relativeL2 *float64) {
	return number(d.largest), number(math.Sqrt(d.squares / d.norm))
}

// number returns nil for a value that JSON does not have.
func number(v float64) *float64 {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return nil
	}
	return &v
}

// Tables are those with ids and as many rows.
func (m fileModel) Tables() (names []string) {
	for _, ids := range m.Infos() {
		name, found := strings.CutSuffix(ids.Name, idsSuffix)
		rows, there := m.info(name + rowsSuffix)
		if found && there && ids.DType == safetensors.I64 && len(ids.Shape) == 1 && len(rows.Shape) == 2 && rows.Shape[0] == ids.Shape[0] {
			names = append(names, name)
		}
	}
	return names
}

func (m fileModel) ReadTable(name string) (*tableRows, error) {
	r, err := m.Open(name + idsSuffix)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(r)
	if err != nil {
		return nil, err
	}
	values, err := m.Read(name + rowsSuffix)
	if err != nil {
		return nil, err
	}
	rows, _ := m.info(name + rowsSuffix)
	t := &tableRows{ids: make([]int64, len(data)/8), dim: rows.Shape[1]}
	t.values = func(i int) []float32 { return values[i*t.dim : (i+1)*t.dim] }
	for i := range t.ids {
		t.ids[i] = int64(binary.LittleEndian.Uint64(data[8*i:]))
		if i > 0 && t.ids[i-1] >= t.ids[i] {
			return nil, fmt.Errorf("%s%s has %d after %d: expected ascending ids, as `master model export` writes them", name, idsSuffix, t.ids[i], t.ids[i-1])
		}
	}
	return t, nil
}
