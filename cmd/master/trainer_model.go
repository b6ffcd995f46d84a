package main

import (
	"context"
	"fmt"

	"trainmaster/master/pscontrol"
	"trainmaster/pserver/checkpoint"
	"trainmaster/pserver/checkpoint/storage"
	"trainmaster/taskqueue"
	"trainmaster/trainer/reference"
)

// storedIn returns a function that reads the model of a round from a directory or bucket of checkpoints. A round of no set has no stored model.
func storedIn(place string) func(ctx context.Context, round taskqueue.Round) (*reference.StoredModel, error) {
	return func(ctx context.Context, round taskqueue.Round) (*reference.StoredModel, error) {
		number, ok := pscontrol.SetOfModel(round.Model)
		if !ok {
			return nil, nil
		}
		disk, err := storage.Open(place)
		if err != nil {
			return nil, err
		}
		defer disk.Close()
		store := checkpoint.Store{Place: disk}
		set, err := store.ReadSet(ctx, number)
		if err != nil {
			return nil, err
		}
		parts, err := store.Open(ctx, set)
		if err != nil {
			return nil, err
		}
		return readModel(checkpoint.Join(parts, false))
	}
}

// readModel reads a model into memory.
func readModel(m *checkpoint.Model) (*reference.StoredModel, error) {
	stored := &reference.StoredModel{Tensors: map[string][]float32{}, Tables: map[string]reference.StoredRows{}}
	for _, t := range m.Tensors() {
		values, err := m.Read(t.Name)
		if err != nil {
			return nil, fmt.Errorf("read tensor %q: %w", t.Name, err)
		}
		stored.Tensors[t.Name] = values
	}
	for k, t := range m.Tables() {
		rows, err := m.Rows(k)
		if err != nil {
			return nil, fmt.Errorf("read table %q: %w", t.Name, err)
		}
		r := reference.StoredRows{IDs: rows.IDs}
		for i := range rows.IDs {
			r.Rows = append(r.Rows, rows.Values(i, 0)...)
		}
		stored.Tables[t.Name] = r
	}
	return stored, nil
}
