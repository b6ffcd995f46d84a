package reference

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"trainmaster/dataset/convert"
	"trainmaster/internal/safetensors"
	"trainmaster/trainer/model"
	"trainmaster/trainer/params"
)

// Saved is a model in a safetensors file. The metadata of the file describes how to build the model.
type Saved struct {
	Kind    string
	Config  model.Config
	Version uint64          // of the parameters
	Meaning convert.Meaning // of the dataset it was trained on; zero: not known
	Tensors []model.Tensor
	Tables  []SavedTable // by the model's tables
}

// SavedTable has the rows of an embedding table that were updated; Rows has the shape [ids, dim]. Other rows have
// their initial values.
type SavedTable struct {
	params.Table
	IDs  []int64
	Rows []float32

	places map[int64]int // of the ids, made when it is first looked into
}

// row copies the row of an id.
func (t *SavedTable) row(id int64, into []float32) {
	if t.places == nil {
		t.places = make(map[int64]int, len(t.IDs))
		for i, id := range t.IDs {
			t.places[id] = i
		}
	}
	if i, ok := t.places[id]; ok {
		copy(into, t.Rows[i*t.Dim:(i+1)*t.Dim])
		return
	}
	t.First(into, id)
}

// sorted returns the ids in ascending order, with their rows. Servers send rows in the order of their shards and slots.
func (t *SavedTable) sorted() (ids []int64, rows []float32) {
	order := make([]int, len(t.IDs))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(t.IDs[a], t.IDs[b]) })
	rows = make([]float32, 0, len(t.Rows))
	for _, i := range order {
		ids, rows = append(ids, t.IDs[i]), append(rows, t.Rows[i*t.Dim:(i+1)*t.Dim]...)
	}
	return ids, rows
}

// RowsOf returns the rows that a batch needs.
func (s Saved) RowsOf(batch *model.Batch) []model.Tensor {
	var tables []model.Table
	for _, t := range s.Tables {
		tables = append(tables, model.Table{Name: t.Name, Dim: t.Dim})
	}
	rows := model.ZerosLike(model.Rows(tables, batch))
	for k := range s.Tables {
		t := &s.Tables[k]
		for i, id := range batch.Categories() {
			t.row(id, rows[k].Data[i*t.Dim:(i+1)*t.Dim])
		}
	}
	return rows
}

// idsTensor and rowsTensor are the names of the tensors of a table.
func idsTensor(table string) string  { return table + ".ids" }
func rowsTensor(table string) string { return table + ".rows" }

// initKey is the metadata key for the initial values of a table: the initializer and its scale.
func initKey(table string) string { return table + ".init" }

// readInit parses the value of initKey. Models of releases without this metadata start uniformly in [-0.05, 0.05).
func readInit(t *params.Table, text string) error {
	if text == "" {
		if t.Init != params.Zeros {
			t.Init, t.Scale = params.Uniform, 0.05
		}
		return nil
	}
	if _, err := fmt.Sscanf(text, "%s %g", &t.Init, &t.Scale); err != nil {
		return fmt.Errorf("expected an initializer and its scale, found %q: %w", text, err)
	}
	return t.Validate()
}

// Write writes the file atomically.
func (s Saved) Write(path string) error {
	tensors, metadata := s.encode()
	if err := safetensors.WriteFile(path, tensors, metadata); err != nil {
		return fmt.Errorf("save the model: %w", err)
	}
	return nil
}

// Bytes returns the content of the file.
func (s Saved) Bytes() ([]byte, error) {
	var b bytes.Buffer
	tensors, metadata := s.encode()
	err := safetensors.Write(&b, tensors, metadata)
	return b.Bytes(), err
}

func (s Saved) encode() (tensors []safetensors.Tensor, metadata map[string]string) {
	for _, t := range s.Tensors {
		tensors = append(tensors, safetensors.FromFloat32(t.Name, t.Shape, t.Data))
	}
	for _, t := range s.Tables {
		ids, rows := t.sorted()
		tensors = append(tensors, safetensors.FromInt64(idsTensor(t.Name), []int{len(ids)}, ids),
			safetensors.FromFloat32(rowsTensor(t.Name), []int{len(ids), t.Dim}, rows))
	}
	metadata = map[string]string{
		"model": s.Kind, "version": strconv.FormatUint(s.Version, 10), "seed": strconv.FormatUint(s.Config.Seed, 10),
		"inputs": strconv.Itoa(s.Config.Inputs), "classes": strconv.Itoa(s.Config.Classes), "hidden": strconv.Itoa(s.Config.Hidden),
		"rank": strconv.Itoa(s.Config.Rank),
	}
	if s.Meaning != (convert.Meaning{}) {
		metadata["dataset_labels"], metadata["dataset_scaling"] = s.Meaning.Labels, s.Meaning.Scaling
	}
	for _, t := range s.Tables {
		metadata[initKey(t.Name)] = fmt.Sprintf("%s %v", t.Init, t.Scale)
	}
	return tensors, metadata
}

// ErrNotSaved is returned for a file with tensors that Write did not write, for example a file of `master model export`.
var ErrNotSaved = errors.New("expected a model that `master run` or `master trainer --save-model` saved")

// ReadSaved reads a file of Write.
func ReadSaved(path string) (Saved, error) {
	tensors, metadata, err := safetensors.ReadFile(path)
	if err != nil {
		return Saved{}, fmt.Errorf("load the model: %w", err)
	}
	return savedOf(path, tensors, metadata)
}

// readSavedBytes reads the content of a file of Write. name is for errors.
func readSavedBytes(name string, content []byte) (Saved, error) {
	file, err := safetensors.NewFile(bytes.NewReader(content), int64(len(content)))
	if err != nil {
		return Saved{}, fmt.Errorf("load the model %q: %w", name, err)
	}
	tensors, err := file.ReadAll()
	if err != nil {
		return Saved{}, fmt.Errorf("load the model %q: %w", name, err)
	}
	return savedOf(name, tensors, file.Metadata)
}

// savedOf makes a model of the tensors and the metadata of a file.
func savedOf(path string, tensors []safetensors.Tensor, metadata map[string]string) (s Saved, err error) {
	if metadata["model"] == "" {
		return Saved{}, fmt.Errorf("load the model %q: %w, found tensors without the name of a model: pass the file that the run saved, as in trainmaster-run/001/digits-softmax.safetensors", path, ErrNotSaved)
	}
	s = Saved{Kind: metadata["model"], Meaning: convert.Meaning{Labels: metadata["dataset_labels"], Scaling: metadata["dataset_scaling"]}}
	metadata["rank"] = cmp.Or(metadata["rank"], "0") // of models that were saved before there was one
	for key, into := range map[string]*int{"inputs": &s.Config.Inputs, "classes": &s.Config.Classes, "hidden": &s.Config.Hidden, "rank": &s.Config.Rank} {
		if *into, err = strconv.Atoi(metadata[key]); err != nil {
			return Saved{}, fmt.Errorf("load the model %q: metadata %q: expected a number, found %q", path, key, metadata[key])
		}
	}
	if s.Version, err = strconv.ParseUint(metadata["version"], 10, 64); err != nil {
		return Saved{}, fmt.Errorf("load the model %q: metadata \"version\": expected a number, found %q", path, metadata["version"])
	}
	if s.Config.Seed, err = strconv.ParseUint(metadata["seed"], 10, 64); err != nil {
		return Saved{}, fmt.Errorf("load the model %q: metadata \"seed\": expected a number, found %q", path, metadata["seed"])
	}
	m, err := model.New(s.Kind, s.Config)
	if err != nil {
		return Saved{}, fmt.Errorf("load the model %q: %w", path, err)
	}
	s.Tensors = m.Parameters()
	byName := map[string]safetensors.Tensor{}
	for _, t := range tensors {
		byName[t.Name] = t
	}
	for _, t := range s.Tensors {
		values, err := byName[t.Name].Float32()
		if err != nil || len(values) != len(t.Data) {
			return Saved{}, fmt.Errorf("load the model %q: tensor %q: expected %d values, found %d (%v)", path, t.Name, len(t.Data), len(values), err)
		}
		copy(t.Data, values)
	}
	for _, declared := range declare(m.Tables(), s.Config.Seed) {
		t := SavedTable{Table: declared}
		if err := readInit(&t.Table, metadata[initKey(t.Name)]); err != nil {
			return Saved{}, fmt.Errorf("load the model %q: metadata %q: %w", path, initKey(t.Name), err)
		}
		ids, idsErr := byName[idsTensor(t.Name)].Int64()
		values, err := byName[rowsTensor(t.Name)].Float32()
		if err := errors.Join(idsErr, err); err != nil || len(values) != len(ids)*t.Dim {
			return Saved{}, fmt.Errorf("load the model %q: table %q: expected %d values for each of %d ids, found %d (%v)", path, t.Name, t.Dim, len(ids), len(values), err)
		}
		t.IDs, t.Rows = ids, values
		s.Tables = append(s.Tables, t)
	}
	return s, nil
}

// Model builds the model of the tensors.
func (s Saved) Model() (model.Model, error) { return model.New(s.Kind, s.Config) }
