package reference

import (
	"context"
	"fmt"
	"slices"

	"trainmaster/trainer/model"
	"trainmaster/trainer/params"
)

// Rows are the embedding tables on the parameter servers; *params.Client is one. Rows and gradients have the shape [ids, dim].
type Rows interface {
	// Lookup fills dst with the rows of ids. In synchronous training it waits for atLeast, and all rows have the returned version.
	Lookup(ctx context.Context, table string, ids []int64, dst []float32, atLeast uint64) (version uint64, err error)

	// PushRows applies mean gradients once for each table and step.
	PushRows(ctx context.Context, table string, step uint64, scale float32, ids []int64, gradients []float32) error

	// StageRows stages sums of gradients computed at version, as Parameters.Stage does.
	StageRows(ctx context.Context, table string, version uint64, ids []int64, sums []float32, records int) error
}

// rows holds the table rows of a mini-batch, and the gradients for the next push.
type rows struct {
	server            Rows
	tables            []model.Table
	values, gradients []model.Tensor // of the mini-batch at hand, by table

	ids   []int64     // of the mini-batches of a push
	means [][]float32 // their gradients, by table
}

func newRows(server Rows, tables []model.Table) *rows {
	return &rows{server: server, tables: tables, means: make([][]float32, len(tables))}
}

// gather looks up the rows of a mini-batch, and returns their newest version.
func (r *rows) gather(ctx context.Context, batch *model.Batch, atLeast uint64) (version uint64, err error) {
	shapes := model.Rows(r.tables, batch)
	r.values, r.gradients = fitted(r.values, shapes), fitted(r.gradients, shapes)
	version = atLeast
	for _, t := range r.values {
		found, err := r.server.Lookup(ctx, t.Name, batch.Categories(), t.Data, atLeast)
		if err != nil {
			return 0, fmt.Errorf("look rows of %q up: %w", t.Name, err)
		}
		version = max(version, found)
	}
	return version, nil
}

// fitted returns tensors of the given names and shapes in reused memory, with undefined values.
func fitted(tensors, shapes []model.Tensor) []model.Tensor {
	for i, s := range shapes {
		if i == len(tensors) {
			tensors = append(tensors, model.Tensor{})
		}
		n := s.Size()
		tensors[i] = model.Tensor{Name: s.Name, Shape: s.Shape, Data: slices.Grow(tensors[i].Data[:0], n)[:n]}
	}
	return tensors
}

// keep adds the gradients of the current mini-batch to the push.
func (r *rows) keep(batch *model.Batch) {
	r.ids = append(r.ids, batch.Categories()...)
	for i, g := range r.gradients {
		r.means[i] = append(r.means[i], g.Data...)
	}
}

// begin drops the kept gradients.
func (r *rows) begin() {
	r.ids = r.ids[:0]
	for i := range r.means {
		r.means[i] = r.means[i][:0]
	}
}

// push pushes the kept gradients.
func (r *rows) push(ctx context.Context, step uint64) error {
	for i, t := range r.tables {
		if err := r.server.PushRows(ctx, t.Name, step, 1, r.ids, r.means[i]); err != nil {
			return fmt.Errorf("push step %d to %q: %w", step, t.Name, err)
		}
	}
	return nil
}

// stage stages the gradients of the current mini-batch.
func (r *rows) stage(ctx context.Context, version uint64, batch *model.Batch) error {
	for _, g := range r.gradients {
		if err := r.server.StageRows(ctx, g.Name, version, batch.Categories(), g.Data, batch.Len()); err != nil {
			return err
		}
	}
	return nil
}

// all returns the tensors of a model and the rows of its tables in the order of the model.
func all(tensors, ofTables []model.Tensor) []model.Tensor {
	return append(slices.Clip(tensors), ofTables...)
}

// declare describes the tables of a model to the parameter servers.
func declare(tables []model.Table, seed uint64) []params.Table {
	var declared []params.Table
	for _, t := range tables {
		d := params.Table{Name: t.Name, Dim: t.Dim, Init: params.Zeros, Seed: seed}
		if t.Deviation > 0 {
			d.Init, d.Scale = params.Normal, float32(t.Deviation)
		}
		declared = append(declared, d)
	}
	return declared
}
