package params

import (
	"context"
	"fmt"
	"math"

	"trainmaster/pserver/table"
	"trainmaster/pserver/wire"
)

// Table is a table of embeddings: rows of Dim float32 by int64 id. It belongs to the job: all trainers give the same.
type Table = table.Config

// The initializers of a Table.
const (
	Zeros   = table.Zeros
	Uniform = table.Uniform
	Normal  = table.Normal
)

// Lookup fills dst, of shape [ids, dim], with the rows of ids, in their order; ids may repeat. A row without updates has its initial
// value, and a lookup creates no row. In mode Sync it waits for minVersion, and all rows have the returned version, which may
// be later: pull the other parameters of that version then. In mode Async each row is consistent, and the version is 0.
// Without ids Lookup returns minVersion and does not wait.
func (c *Client) Lookup(ctx context.Context, table string, ids []int64, dst []float32, minVersion uint64) (version uint64, err error) {
	call, err := c.shards.Rows(wire.LookupRows, table, 0, 0, ids, nil, dst)
	if err != nil {
		return 0, fmt.Errorf("lookup: %w", err)
	}
	if len(ids) == 0 {
		return minVersion, nil
	}
	if version, err = c.shards.Fetch(ctx, call, minVersion); err != nil {
		return 0, fmt.Errorf("lookup: %w", err)
	}
	call.FillRepeats()
	return version, nil
}

// PushRows sends the gradients of some rows, of shape [ids, dim], each the mean over the batch. Gradients of a repeated id are
// summed in their order before they are sent. Only these rows change. Steps start at 1 and grow, one push for each table and step.
// An earlier step counts as a repetition and is not applied. A step above 2³¹-1 is an error for a table with expiry. scale is as in PushPull.
func (c *Client) PushRows(ctx context.Context, table string, step uint64, scale float32, ids []int64, grads []float32) error {
	if err := c.checkPush("push rows", step, scale); err != nil {
		return err
	}
	return c.sendRows(ctx, "push rows", wire.PushRows, table, step, math.Float32bits(scale), ids, grads)
}

// CheckRows returns the error with which PushRows refuses gradients before it sends any of them. A caller that pushes tensors and rows with one step
// calls it first, so that the step changes all of them or none.
func (c *Client) CheckRows(table string, step uint64, ids []int64, grads []float32) error {
	if _, err := c.shards.Rows(wire.PushRows, table, step, 0, ids, grads, nil); err != nil {
		return fmt.Errorf("push rows: %w", err)
	}
	return nil
}

// StageRows stages gradients of rows, each the sum over records, as Stage does for tensors. A commit needs both from each
// contributor: a trainer stages every table in every version, without ids if it touched no row.
func (c *Client) StageRows(ctx context.Context, table string, version uint64, ids []int64, grads []float32, records int) error {
	if err := c.checkStage("stage rows", records); err != nil {
		return err
	}
	return c.sendRows(ctx, "stage rows", wire.StageRows, table, version, uint32(records), ids, grads)
}

func (c *Client) sendRows(ctx context.Context, what string, op wire.Op, table string, step uint64, argument uint32, ids []int64, grads []float32) error {
	call, err := c.shards.Rows(op, table, step, argument, ids, grads, nil)
	if err == nil {
		err = c.shards.Do(ctx, call)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// Scan reads the stored rows of a table, in no particular order, and passes them to yield, values of shape [ids, dim]. Both are
// valid during the call only. An id without updates has no row. During concurrent pushes a row has its values at some point of the
// scan. No row comes twice, even after a restart of a server or a migration. An error of yield ends the scan.
func (c *Client) Scan(ctx context.Context, table string, yield func(ids []int64, values []float32) error) error {
	if err := c.shards.Scan(ctx, table, yield); err != nil {
		return fmt.Errorf("scan: %w", err)
	}
	return nil
}
