package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"trainmaster/cmd/internal/cli"
	"trainmaster/internal/safetensors"
	"trainmaster/pserver/checkpoint"
	"trainmaster/pserver/checkpoint/storage"
)

// tensorDiff is how a tensor differs between two models.
type tensorDiff struct {
	Name   string `json:"name"`
	ShapeA []int  `json:"shape_a"` // null: not in this model
	ShapeB []int  `json:"shape_b"`
	// Of equal shapes only, and null where it is no number.
	MaxAbs     *float64 `json:"max_abs"`     // the largest |a - b| of an element
	RelativeL2 *float64 `json:"relative_l2"` // ‖a - b‖₂ / ‖a‖₂
	// Of tables of embeddings with rows of the same size: those above are of the ids that both have.
	Rows *rowsDiff `json:"rows"`
}

func modelDiffCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "diff A B",
		Short: "List the tensors and tables in which two models differ",
		Long: `Diff compares parameters element by element, bit by bit except the sign of 0. A and B are folders or URLs of checkpoints, files of
sets, or safetensors files of float32. It prints the largest absolute difference and the relative L2 difference of each tensor that
differs, and exits with 1 when there is one. Tables of embeddings are compared row by row, by id.`,
		Example: `  # does the exported model have what the newest set has
  master model diff checkpoints model.safetensors`,
		Args: cobra.ExactArgs(2),
	}
	format := cli.AddOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		var models [2]weights
		for i, arg := range args {
			var err error
			var done func()
			if models[i], done, err = openModel(cmd.Context(), arg); err != nil {
				return err
			}
			defer done()
		}
		diffs, err := diffModels(models[0], models[1])
		if err != nil {
			return err
		}
		if err := cli.Render(cmd.OutOrStdout(), *format, diffs, func(w io.Writer) { diffTable(w, diffs) }); err != nil {
			return err
		}
		if len(diffs) > 0 {
			return fmt.Errorf("%s and %s differ in %s", args[0], args[1], cli.Counted(len(diffs), "tensor")+" or tables")
		}
		return nil
	}
	return cmd
}

// weights are the tensors of a model, all of float32, and its tables.
type weights interface {
	Tensors() []safetensors.Info // except the tensors of tables
	Read(name string) ([]float32, error)
	Tables() []string
	ReadTable(name string) (*tableRows, error)
}

// openModel opens a set of checkpoints or a safetensors file.
func openModel(ctx context.Context, arg string) (m weights, done func(), err error) {
	if strings.HasSuffix(arg, ".safetensors") && !storage.IsURL(arg) {
		return openSafetensors(arg)
	}
	store, _, parts, err := openSet(ctx, arg)
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

func openSafetensors(path string) (weights, func(), error) {
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

func diffModels(a, b weights) ([]tensorDiff, error) {
	shapes := func(m weights) map[string][]int {
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
	diffs := []tensorDiff{}
	for _, name := range names {
		d := tensorDiff{Name: name, ShapeA: inA[name], ShapeB: inB[name]}
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

// difference is what is known of the elements compared so far.
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

// number is nil for what JSON cannot say.
func number(v float64) *float64 {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return nil
	}
	return &v
}

func diffTable(w io.Writer, diffs []tensorDiff) {
	if len(diffs) == 0 {
		fmt.Fprintln(w, "no difference")
		return
	}
	fmt.Fprintln(w, "TENSOR\tSHAPE IN A\tSHAPE IN B\tMAX ABS\tRELATIVE L2\tROWS")
	shape := func(s []int) string {
		if s == nil {
			return "-"
		}
		return fmt.Sprint(s)
	}
	value := func(v *float64) string {
		if v == nil {
			return "-"
		}
		return fmt.Sprintf("%.3g", *v)
	}
	for _, d := range diffs {
		rows := ""
		if d.Rows != nil {
			rows = fmt.Sprintf("%d only in A, %d only in B, %d differ", d.Rows.OnlyA, d.Rows.OnlyB, d.Rows.Differ)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", d.Name, shape(d.ShapeA), shape(d.ShapeB), value(d.MaxAbs), value(d.RelativeL2), rows)
	}
}
