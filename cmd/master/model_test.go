package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"trainmaster/cmd/internal/cli"
	"trainmaster/internal/safetensors"
	"trainmaster/pserver/checkpoint"
	"trainmaster/pserver/checkpoint/modelfile"
	"trainmaster/pserver/floats"
	"trainmaster/pserver/optimizer"
	"trainmaster/pserver/placement"
	"trainmaster/pserver/staleness"
	"trainmaster/pserver/table"
	"trainmaster/scripts/prepared"
)

// writeSet writes set number of two shards to dir; element j of tensor i is value + 1000 i + j, and the rows of tables are
// as writeRows has them.
func writeSet(t *testing.T, dir string, number uint64, value float32, tables ...table.Config) string {
	t.Helper()
	return writeTensors(t, dir, number, value, []placement.Tensor{{Name: "bias", Shape: []int{3}}, {Name: "big", Shape: []int{3, placement.BlockElements}}}, tables...)
}

// leastVersion is the version of the block with the fewest updates in a set of writeSet.
const leastVersion = 40

// writeTensors is writeSet with other tensors.
func writeTensors(t *testing.T, dir string, number uint64, value float32, tensors []placement.Tensor, tables ...table.Config) string {
	t.Helper()
	table, err := placement.New(tensors, 2, tables...)
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
			if _, err := weights.Write(floats.Bytes(values)); err != nil {
				t.Fatal(err)
			}
			if _, err := states[0].Write(floats.Bytes(make([]float32, b.Len))); err != nil {
				t.Fatal(err)
			}
		}
		versions := make([]uint64, len(share.Blocks))
		for i := range versions {
			versions[i] = leastVersion + uint64(shard+i)
		}
		if err := w.Marks(&checkpoint.Marks{Versions: versions, Updates: make([]uint64, len(versions))}, nil); err != nil {
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
	runArgs(t, "model", "diff", first, plain).wants(t, cli.ExitFailed, "differ in 2 tensors")
	var diffs []modelfile.TensorDiff
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
	runArgs(t, "model", "inspect", dir).wants(t, cli.ExitFailed, "weights.safetensors")
	runArgs(t, "model", "inspect", first).says(t, "complete")
	runArgs(t, "model", "export", dir, "--file", plain).wants(t, cli.ExitFailed, plain, "use --force")
	runArgs(t, "model", "export", dir, "--file", plain, "--force").wants(t, cli.ExitFailed, "name an older one")
	runArgs(t, "model", "export", t.TempDir()).wants(t, cli.ExitFailed, "no set of checkpoints", "expected sets/<number>.json in it\n")
	runArgs(t, "model", "inspect", filepath.Dir(dir)).wants(t, cli.ExitFailed, "expected sets/<number>.json in it; did you mean "+dir+"?")
	runArgs(t, "model", "inspect", file).wants(t, cli.ExitUsage, file+": expected a directory of checkpoints, a set in it, sets/<number>.json, or (diff only)")
	runArgs(t, "model", "inspect", filepath.Join(dir, "none")).wants(t, cli.ExitFailed, "no such file")
}

// python runs a script with the packages of scripts/requirements.txt.
func python(t *testing.T, script string, args ...string) {
	t.Helper()
	program := prepared.Python(t)
	if out, err := exec.Command(program, append([]string{"-c", strings.TrimSpace(script)}, args...)...).CombinedOutput(); err != nil {
		t.Errorf("python: %v\n%s", err, out)
	}
}

// An exported file loads in Python.
func TestModelInPython(t *testing.T) {
	file := filepath.Join(t.TempDir(), "model.safetensors")
	runArgs(t, "model", "export", writeSet(t, filepath.Join(t.TempDir(), "checkpoints"), 7, 0.25), "--file", file)
	python(t, `
import sys, numpy, safetensors.numpy
t = safetensors.numpy.load_file(sys.argv[1])
assert sorted(t) == ["bias", "big"], list(t)
assert t["bias"].tolist() == [0.25, 1.25, 2.25], t["bias"]
assert t["big"].shape == (3, 262144) and t["big"][2, 5] == numpy.float32(0.25 + 1000 + 2 * 262144 + 5), t["big"]
`, file)
}

// An exported network loads into linear layers of PyTorch by load_state_dict, and computes what the trainers computed. Without
// PyTorch, numpy stands in for its layers, with their names, shapes and formula.
func TestExportLoadsAsLinearLayers(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "checkpoints")
	writeTensors(t, dir, 7, 0.25, []placement.Tensor{
		{Name: "hidden.weight", Shape: []int{2, 3}}, {Name: "hidden.bias", Shape: []int{3}},
		{Name: "output.weight", Shape: []int{3, 4}}, {Name: "output.bias", Shape: []int{4}},
	})
	file, stored := filepath.Join(t.TempDir(), "model.safetensors"), filepath.Join(t.TempDir(), "stored.safetensors")
	runArgs(t, "model", "export", dir, "--file", file, "--optimizer").wants(t, cli.ExitOK)
	runArgs(t, "model", "export", dir, "--file", stored, "--layout", "stored").wants(t, cli.ExitOK)
	runArgs(t, "model", "diff", dir, stored).says(t, "no difference")
	plain := filepath.Join(t.TempDir(), "plain.safetensors")
	runArgs(t, "model", "export", dir, "--file", plain).wants(t, cli.ExitOK)
	runArgs(t, "model", "diff", plain, stored).says(t, "no difference")
	python(t, `
import sys, numpy, safetensors.numpy
state = safetensors.numpy.load_file(sys.argv[1])
stored = safetensors.numpy.load_file(sys.argv[2])
with_optimizer = safetensors.numpy.load_file(sys.argv[3])
x = numpy.array([[1, -2]], numpy.float32)
expected = (x @ stored["hidden.weight"] + stored["hidden.bias"]) @ stored["output.weight"] + stored["output.bias"]
assert with_optimizer["hidden.weight.momentum"].shape == state["hidden.weight"].shape
try:
    import torch
    net = torch.nn.Sequential()
    net.add_module("hidden", torch.nn.Linear(2, 3))
    net.add_module("output", torch.nn.Linear(3, 4))
    net.load_state_dict({k: torch.from_numpy(v) for k, v in state.items()})
    found = net(torch.from_numpy(x)).detach().numpy()
except ModuleNotFoundError:
    layers = {"hidden": (2, 3), "output": (3, 4)} # torch.nn.Linear(in_features, out_features)
    shapes = {}
    for name, (inputs, outputs) in layers.items():
        shapes[name + ".weight"], shapes[name + ".bias"] = (outputs, inputs), (outputs,)
    assert {k: v.shape for k, v in state.items()} == shapes, {k: v.shape for k, v in state.items()}
    found = x
    for name in layers:
        found = found @ state[name + ".weight"].T + state[name + ".bias"]
assert numpy.allclose(found, expected), (found, expected)
`, plain, stored, file)
}

// The version of an asynchronous set is the version of the block with the fewest updates, in the file and in the report.
func TestExportOfAnAsynchronousSetHasAVersion(t *testing.T) {
	dir, file := filepath.Join(t.TempDir(), "checkpoints"), filepath.Join(t.TempDir(), "model.safetensors")
	writeSet(t, dir, 3, 0)
	var e exported
	if err := json.Unmarshal([]byte(runArgs(t, "model", "export", dir, "--file", file, "-o", "json").stdout), &e); err != nil {
		t.Fatal(err)
	}
	_, metadata, err := safetensors.ReadFile(file)
	if err != nil || e.Version != leastVersion || metadata["version"] != fmt.Sprint(leastVersion) {
		t.Errorf("found version %d and metadata %v (%v), expected %d", e.Version, metadata, err, leastVersion)
	}
	var sets []modelfile.SetReport
	if err := json.Unmarshal([]byte(runArgs(t, "model", "inspect", dir, "-o", "json").stdout), &sets); err != nil || len(sets) != 1 || sets[0].Version != leastVersion {
		t.Errorf("found %+v (%v), expected version %d", sets, err, leastVersion)
	}
}
