package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"trainmaster/pserver/checkpoint"
	"trainmaster/pserver/optimizer"
	"trainmaster/pserver/placement"
	"trainmaster/pserver/sparse"
	"trainmaster/pserver/staleness"
	"trainmaster/pserver/wire"
	"trainmaster/safetensors"
)

// writeSet writes set number of two shards to dir; element j of tensor i is value + 1000 i + j, and the rows of tables are
// as writeRows has them.
func writeSet(t *testing.T, dir string, number uint64, value float32, tables ...sparse.Config) string {
	t.Helper()
	table, err := placement.New([]placement.Tensor{{Name: "bias", Shape: []int{3}}, {Name: "big", Shape: []int{3, wire.BlockElements}}}, 2, tables...)
	if err != nil {
		t.Fatal(err)
	}
	o := optimizer.Config{Kind: optimizer.Momentum, LearningRate: 0.1, Momentum: 0.9}
	store := checkpoint.Store{Place: checkpoint.Disk(dir)}
	set := &checkpoint.Set{Job: "test", Number: number, Mode: checkpoint.Async, JobEpoch: 1}
	for shard := range table.Shards {
		folder := store.Shard(shard)
		if err := folder.Prepare(); err != nil {
			t.Fatal(err)
		}
		start, err := folder.CountStart(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		w, err := folder.Begin(t.Context(), checkpoint.Generation{Start: start, Sequence: 1})
		if err != nil {
			t.Fatal(err)
		}
		share := checkpoint.ShareOf(table, shard)
		weights, err := w.Create(checkpoint.WeightsFile, share.Tensors(""), nil)
		if err != nil {
			t.Fatal(err)
		}
		states, err := w.CreateSlots(share, o.Rule().Slots(), nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range share.Blocks {
			values := make([]float32, b.Len)
			for j := range values {
				values[j] = value + float32(1000*b.Tensor+b.Offset+j)
			}
			if _, err := weights.Write(wire.FloatBytes(values)); err != nil {
				t.Fatal(err)
			}
			if _, err := states[0].Write(wire.FloatBytes(make([]float32, b.Len))); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Marks(&checkpoint.Marks{Versions: make([]uint64, len(share.Blocks))}, nil); err != nil {
			t.Fatal(err)
		}
		for k := range tables {
			writeRows(t, w, k, share, shard, o, value)
		}
		m := checkpoint.NewManifest(o, staleness.Bound{}, checkpoint.Async, table)
		m.Shard, m.Set, m.JobEpoch = shard, number, 1
		_, digest, err := w.Finish(t.Context(), m)
		if err != nil {
			t.Fatal(err)
		}
		set.Shards = append(set.Shards, checkpoint.Part{Shard: shard, Generation: m.Generation, SHA256: digest})
	}
	text, err := set.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if err := store.WriteSet(t.Context(), text, nil); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "sets", fmt.Sprintf("%08d.json", number))
}

func TestModel(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "checkpoints")
	first, second := writeSet(t, dir, 1, 0), writeSet(t, dir, 2, 0.5)
	file := filepath.Join(t.TempDir(), "model.safetensors")
	runArgs(t, "model", "export", dir, "--file", file, "--optimizer").says(t, "set 2")
	tensors, _, err := safetensors.ReadFile(file)
	if err != nil || len(tensors) != 4 {
		t.Fatalf("%d tensors, %v", len(tensors), err)
	}
	for i, want := range []string{"bias", "big", "bias.momentum", "big.momentum"} {
		values, err := tensors[i].Float32()
		last := len(values) - 1
		if err != nil || tensors[i].Name != want || i < 2 && values[last] != 0.5+float32(1000*i+last) || i >= 2 && values[last] != 0 {
			t.Errorf("tensor %d is %s with %v at its end, %v", i, tensors[i].Name, values[last], err)
		}
	}
	plain := filepath.Join(t.TempDir(), "plain.safetensors")
	runArgs(t, "model", "export", second, "--file", plain)
	runArgs(t, "model", "diff", dir, plain).says(t, "no difference")
	runArgs(t, "model", "diff", first, plain).wants(t, exitFailed, "differ in 2 tensors")
	var diffs []tensorDiff
	if err := json.Unmarshal([]byte(runArgs(t, "model", "diff", first, file, "-o", "json").stdout), &diffs); err != nil {
		t.Fatal(err)
	}
	if len(diffs) != 4 || diffs[1].Name != "big" && diffs[0].Name != "big" || *diffs[0].MaxAbs != 0.5 || diffs[2].ShapeA != nil || diffs[2].ShapeB == nil {
		t.Errorf("differences %+v", diffs)
	}
	runArgs(t, "model", "inspect", dir).says(t, "complete")

	s, err := (checkpoint.Store{Place: checkpoint.Disk(dir)}).ReadSet(t.Context(), 2)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "ps-1", s.Shards[1].Generation.String(), checkpoint.WeightsFile)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)-1] ^= 1
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	runArgs(t, "model", "inspect", dir).wants(t, exitFailed, "weights.safetensors")
	runArgs(t, "model", "inspect", first).says(t, "complete")
	runArgs(t, "model", "export", dir, "--file", plain).wants(t, exitFailed, "name an older one")
	runArgs(t, "model", "export", t.TempDir()).wants(t, exitFailed, "no set of checkpoints", "expected sets/<number>.json in it\n")
	runArgs(t, "model", "inspect", filepath.Dir(dir)).wants(t, exitFailed, "expected sets/<number>.json in it; did you mean "+dir+"?")
	runArgs(t, "model", "inspect", file).wants(t, exitUsage, file+": expected a folder of checkpoints, a set in it, sets/<number>.json, or (diff only)")
	runArgs(t, "model", "inspect", filepath.Join(dir, "none")).wants(t, exitFailed, "no such file")
}

// What is exported loads in Python.
func TestModelInPython(t *testing.T) {
	python := "../../.cache/python/bin/python3"
	if _, err := os.Stat(python); err != nil {
		python = "python3"
	}
	if out, err := exec.Command(python, "-c", "import numpy, safetensors.numpy").CombinedOutput(); err != nil {
		missing := fmt.Sprintf("%s with the packages of scripts/requirements.txt is missing (`make setup` installs them): %v %s", python, err, out)
		if os.Getenv("REQUIRE") == "all" {
			t.Fatal(missing)
		}
		t.Skip(missing)
	}
	file := filepath.Join(t.TempDir(), "model.safetensors")
	runArgs(t, "model", "export", writeSet(t, filepath.Join(t.TempDir(), "checkpoints"), 7, 0.25), "--file", file)
	script := `
import sys, numpy, safetensors.numpy
t = safetensors.numpy.load_file(sys.argv[1])
assert sorted(t) == ["bias", "big"], list(t)
assert t["bias"].tolist() == [0.25, 1.25, 2.25], t["bias"]
assert t["big"].shape == (3, 262144) and t["big"][2, 5] == numpy.float32(0.25 + 1000 + 2 * 262144 + 5), t["big"]
`
	if out, err := exec.Command(python, "-c", strings.TrimSpace(script), file).CombinedOutput(); err != nil {
		t.Errorf("python: %v\n%s", err, out)
	}
}
