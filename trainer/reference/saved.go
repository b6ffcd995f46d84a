package reference

import (
	"fmt"
	"strconv"

	"trainmaster/safetensors"
	"trainmaster/trainer/model"
)

// Saved is a model in a file: a safetensors file with its tensors, whose metadata says how
// to build the model again.
type Saved struct {
	Kind    string
	Config  model.Config
	Version uint64 // of the parameters
	Tensors []model.Tensor
}

// Write writes the file whole or not at all.
func (s Saved) Write(path string) error {
	tensors := make([]safetensors.Tensor, len(s.Tensors))
	for i, t := range s.Tensors {
		tensors[i] = safetensors.FromFloat32(t.Name, t.Shape, t.Data)
	}
	metadata := map[string]string{
		"model": s.Kind, "version": strconv.FormatUint(s.Version, 10), "seed": strconv.FormatUint(s.Config.Seed, 10),
		"inputs": strconv.Itoa(s.Config.Inputs), "classes": strconv.Itoa(s.Config.Classes), "hidden": strconv.Itoa(s.Config.Hidden),
	}
	if err := safetensors.WriteFile(path, tensors, metadata); err != nil {
		return fmt.Errorf("save the model: %w", err)
	}
	return nil
}

// ReadSaved reads what Write wrote.
func ReadSaved(path string) (Saved, error) {
	tensors, metadata, err := safetensors.ReadFile(path)
	if err != nil {
		return Saved{}, fmt.Errorf("load the model: %w", err)
	}
	s := Saved{Kind: metadata["model"]}
	for key, into := range map[string]*int{"inputs": &s.Config.Inputs, "classes": &s.Config.Classes, "hidden": &s.Config.Hidden} {
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
	return s, nil
}

// Model builds the model that the tensors belong to.
func (s Saved) Model() (model.Model, error) { return model.New(s.Kind, s.Config) }
