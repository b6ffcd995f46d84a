package main

import (
	"encoding/binary"
	"encoding/json"
	"path/filepath"
	"slices"
	"testing"

	"trainmaster/cmd/internal/cli"
	"trainmaster/internal/safetensors"
	"trainmaster/pserver/checkpoint"
	"trainmaster/pserver/checkpoint/modelfile"
	"trainmaster/pserver/optimizer"
	"trainmaster/pserver/table"
)

// writeRows writes a shard's slots of table k: ids from -5 up to 20 + value, whose elements are id + value, with the
// optimizer's state the same and negative.
func writeRows(t *testing.T, w *checkpoint.Writer, k int, share checkpoint.Share, shard int, o optimizer.Config, value float32) {
	t.Helper()
	cfg, total := share.Table.Sparse[k], 0
	var images []*table.Image
	held := share.Table.HeldSlots(k, shard)
	for _, slot := range held {
		m := &table.Image{}
		for id := int64(20 + value); id >= -5; id-- {
			if table.SlotOf(id) != slot {
				continue
			}
			m.IDs, m.Versions = append(m.IDs, id), append(m.Versions, 1)
			m.Values = append(m.Values, slices.Repeat([]float32{float32(id) + value}, cfg.Dim)...)
			m.Values = append(m.Values, slices.Repeat([]float32{-float32(id) - value}, cfg.Dim)...)
		}
		m.LiveRows = len(m.IDs)
		total += m.LiveRows
		images = append(images, m)
	}
	out, err := w.CreateTable(k, cfg, o, checkpoint.TableSizes{Rows: total}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, slot := range held {
		if err := out.Add(slot, images[i]); err != nil {
			t.Fatal(err)
		}
	}
	if err := out.Finish(); err != nil {
		t.Fatal(err)
	}
}

func TestModelWithTables(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "checkpoints")
	users := table.Config{Name: "users", Dim: 3, Init: table.Zeros}
	first := writeSet(t, dir, 1, 0, users)
	writeSet(t, dir, 2, 2, users)
	file, plain := filepath.Join(t.TempDir(), "model.safetensors"), filepath.Join(t.TempDir(), "plain.safetensors")
	runArgs(t, "model", "export", dir, "--file", file, "--optimizer").says(t, "set 2")
	tensors, _, err := safetensors.ReadFile(file)
	if err != nil || len(tensors) != 7 {
		t.Fatalf("%d tensors, %v", len(tensors), err)
	}
	ids, rows, momentum := tensors[4], tensors[5], tensors[6]
	if ids.Name != "users.ids" || rows.Name != "users.rows" || momentum.Name != "users.momentum" || !slices.Equal(rows.Shape, []int{28, 3}) {
		t.Fatalf("exported %v, %v, %v", ids.Info, rows.Info, momentum.Info)
	}
	values, err := rows.Float32()
	if err != nil {
		t.Fatal(err)
	}
	state, err := momentum.Float32()
	if err != nil {
		t.Fatal(err)
	}
	for i := range 28 {
		id := int64(binary.LittleEndian.Uint64(ids.Data[8*i:]))
		if want := float32(id) + 2; id != int64(i-5) || values[3*i+2] != want || state[3*i+1] != -want {
			t.Errorf("row %d is of id %d, %v, %v", i, id, values[3*i:3*i+3], state[3*i:3*i+3])
		}
	}

	runArgs(t, "model", "export", dir, "--file", plain)
	runArgs(t, "model", "diff", dir, plain).says(t, "no difference")
	runArgs(t, "model", "diff", first, plain).wants(t, cli.ExitFailed, "differ in 3")
	var diffs []modelfile.TensorDiff
	if err := json.Unmarshal([]byte(runArgs(t, "model", "diff", plain, first, "-o", "json").stdout), &diffs); err != nil {
		t.Fatal(err)
	}
	if d := diffs[2]; d.Name != "users" || d.Rows == nil || *d.Rows != (modelfile.RowsDiff{OnlyA: 2, Differ: 26}) || *d.MaxAbs != 2 || !slices.Equal(d.ShapeB, []int{26, 3}) {
		t.Errorf("difference %+v, rows %+v", d, d.Rows)
	}
	if err := json.Unmarshal([]byte(runArgs(t, "model", "diff", writeSet(t, filepath.Join(t.TempDir(), "other"), 1, 2), plain, "-o", "json").stdout), &diffs); err != nil {
		t.Fatal(err)
	}
	if len(diffs) != 1 || diffs[0].ShapeA != nil || !slices.Equal(diffs[0].ShapeB, []int{28, 3}) {
		t.Errorf("differences %+v", diffs)
	}
	var reports []modelfile.SetReport
	if err := json.Unmarshal([]byte(runArgs(t, "model", "inspect", dir, "-o", "json").stdout), &reports); err != nil {
		t.Fatal(err)
	}
	if len(reports) != 2 || !slices.Equal(reports[0].Tables, []modelfile.TableReport{{Name: "users", Dim: 3, Rows: 28}}) || reports[1].Tables[0].Rows != 26 {
		t.Errorf("sets %+v", reports)
	}
	runArgs(t, "model", "inspect", dir).says(t, "TABLE")
}
