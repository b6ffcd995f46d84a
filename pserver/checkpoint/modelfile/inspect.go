package modelfile

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"strings"

	"trainmaster/pserver/checkpoint"
)

// SetReport describes a checkpoint set.
type SetReport struct {
	Set       uint64         `json:"set"` // 0: what was saved when all were stopped
	Mode      string         `json:"mode"`
	Version   uint64         `json:"version"`
	JobEpoch  uint32         `json:"job_epoch"`
	Complete  bool           `json:"complete"`
	Problem   string         `json:"problem"`
	Optimizer string         `json:"optimizer"`
	Shards    []shardReport  `json:"shards"`
	Tensors   []tensorReport `json:"tensors"`
	Tables    []TableReport  `json:"tables"` // of a complete set
}

type shardReport struct {
	Shard      int    `json:"shard"`
	Generation string `json:"generation"`
	Bytes      int64  `json:"bytes"`
	Blocks     int    `json:"blocks"`
}

type tensorReport struct {
	Name  string `json:"name"`
	Shape []int  `json:"shape"`
	Bytes int64  `json:"bytes"`
}

// Inspect reports the sets of a directory or bucket, the newest first, or one set. It reads all their files.
func Inspect(ctx context.Context, arg string) (reports []SetReport, err error) {
	c, err := openSource(arg)
	if err != nil {
		return nil, err
	}
	defer c.Place.Close()
	newest, err := c.newest(ctx)
	if errors.Is(err, checkpoint.ErrUnavailable) || c.one != nil && err != nil {
		return nil, err
	}
	if c.one != nil {
		return []SetReport{reportSet(ctx, c.Store, newest)}, nil
	}
	numbers, listErr := c.Sets(ctx)
	if listErr != nil || len(numbers) == 0 && err != nil {
		return nil, cmp.Or(err, listErr)
	}
	for _, n := range numbers {
		report := SetReport{Set: n}
		if set, err := c.ReadSet(ctx, n); err != nil {
			report.Problem = err.Error()
		} else {
			report = reportSet(ctx, c.Store, set)
		}
		if _, err := c.ReadSet(ctx, n); !report.Complete && errors.Is(err, fs.ErrNotExist) {
			continue // the job has removed it since, because newer sets exist
		}
		reports = append(reports, report)
	}
	return reports, nil
}

func reportSet(ctx context.Context, store checkpoint.Store, set *checkpoint.Set) SetReport {
	r := SetReport{Set: set.Number, Mode: set.Mode, Version: set.Version, JobEpoch: set.JobEpoch}
	parts, err := store.Open(ctx, set)
	if err != nil {
		r.Problem = strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	r.Complete = err == nil
	var whole *checkpoint.Checkpoint
	for i, p := range set.Shards {
		shard := shardReport{Shard: i, Generation: p.Generation.String()}
		if c := parts[i]; c != nil {
			whole = c
			shard.Blocks = len(c.Share.Blocks)
			shard.Bytes = c.Manifest.Bytes()
		}
		r.Shards = append(r.Shards, shard)
	}
	if whole == nil {
		return r
	}
	r.Optimizer = whole.Manifest.Optimizer.String()
	for _, t := range whole.Share.Table.Tensors {
		r.Tensors = append(r.Tensors, tensorReport{t.Name, append([]int{}, t.Shape...), int64(4 * t.Elements())})
	}
	if r.Complete {
		m := checkpoint.Join(parts, false)
		if r.Tables, err = reportTables(m); err == nil {
			r.Version, err = m.Version()
		}
		if err != nil {
			r.Complete, r.Problem = false, err.Error()
		}
	}
	return r
}
