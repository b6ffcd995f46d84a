package pserver_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"trainmaster/internal/safetensors"
	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/pserver"
	"trainmaster/pserver/optimizer"
	"trainmaster/trainer/params"
)

var update = flag.Bool("update", false, "write the golden files")

func goldenModel(value float32) []params.Tensor {
	return []params.Tensor{
		{Name: "layer/weight", Shape: []int{2, 3}, Data: slices.Repeat([]float32{value}, 6)},
		{Name: "layer/bias", Shape: []int{3}, Data: slices.Repeat([]float32{value}, 3)},
	}
}

// The format of stored checkpoints does not change unnoticed: one of a simple optimizer, and one of an optimizer with all settings.
func TestGoldenCheckpoint(t *testing.T) {
	full := params.Optimizer{
		Kind: optimizer.AdamW, LearningRate: 0.01, WeightDecay: 0.1, ClipValue: 3,
		Schedule: optimizer.Schedule{Kind: optimizer.Cosine, Warmup: 2, Steps: 10},
	}
	if err := full.Validate(); err != nil {
		t.Fatal(err)
	}
	for name, o := range map[string]params.Optimizer{"checkpoint": heavy, "checkpoint-2": full} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join("testdata", name)
			if *update {
				writeGolden(t, path, o)
			}
			dir := t.TempDir()
			if err := os.CopyFS(dir, os.DirFS(path)); err != nil {
				t.Fatal(err)
			}
			b := newBook(1)
			s := startServer(t, b, 0, pserver.Config{CheckpointDir: dir})
			c := connect(t, b, params.Config{Mode: params.Async, Optimizer: o})
			pushes := []push{{1, goldenModel(2)}, {2, goldenModel(1)}}
			values := goldenModel(0)
			mustInit(t, c, values)
			if err := differ(values, trained(o, goldenModel(1), pushes[:1])); err != nil {
				t.Errorf("restored %v", err)
			}
			reply, err := control(t, s.addr).Describe(within(t), &pb.DescribeRequest{})
			if err != nil {
				t.Fatal(err)
			}
			if reply.GetShardEpoch() != 2 || reply.GetState() != pb.DescribeReply_STATE_READY || reply.GetCheckpoint() != "00000001-00000002" {
				t.Errorf("described as %v", reply)
			}
			// The push in the checkpoint is not applied again; the push after it finds the state.
			for n, p := range pushes {
				if _, err := c.PushPull(within(t), p.step, 1, p.grads, values); err != nil {
					t.Fatal(err)
				}
				if err := differ(values, trained(o, goldenModel(1), pushes[:n+1])); err != nil {
					t.Errorf("after push %d: %v", n+1, err)
				}
			}
		})
	}
}

// F52, for the file that only some optimizers have.
func TestDamagedSecondSlot(t *testing.T) {
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("testdata/checkpoint-2")); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "ps-0", "00000001-00000002", "optimizer-2.safetensors")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)-1] ^= 1
	write(t, path, data)
	s := startServer(t, newBook(1), 0, pserver.Config{CheckpointDir: dir})
	wantUnrestored(t, "a damaged byte", &cluster{servers: []*server{s}}, "optimizer-2.safetensors")
}

func writeGolden(t *testing.T, path string, o params.Optimizer) {
	t.Helper()
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
	b := newBook(1)
	s := startServer(t, b, 0, pserver.Config{CheckpointDir: path})
	c := connect(t, b, params.Config{Mode: params.Async, Optimizer: o})
	values := goldenModel(1)
	mustInit(t, c, values)
	if _, err := c.PushPull(within(t), 1, 1, goldenModel(2), values); err != nil {
		t.Fatal(err)
	}
	s.stop()
	if err := s.wait(); err != nil {
		t.Fatal(err)
	}
}

// The weights of all shards together are the model, under names that say which part they are.
func TestWeightsOfAllShards(t *testing.T) {
	const shards = 2
	dir, b := t.TempDir(), newBook(shards)
	var servers []*server
	for i := range shards {
		servers = append(servers, startServer(t, b, i, pserver.Config{CheckpointDir: dir}))
	}
	want := tensors(random(5))
	mustInit(t, connect(t, b, params.Config{Mode: params.Async, Optimizer: heavy}), want)
	for _, s := range servers {
		s.stop()
		if err := s.wait(); err != nil {
			t.Fatal(err)
		}
	}
	got := tensors(constant(0))
	elements := 0
	for i := range shards {
		files, err := filepath.Glob(filepath.Join(dir, fmt.Sprintf("ps-%d", i), "*", "weights.safetensors"))
		if err != nil || len(files) == 0 {
			t.Fatalf("shard %d has %v, %v", i, files, err)
		}
		list, metadata, err := safetensors.ReadFile(files[len(files)-1])
		if err != nil || metadata["shard"] != fmt.Sprint(i) {
			t.Fatalf("shard %d: %v, %v", i, metadata, err)
		}
		for _, part := range list {
			values, err := part.Float32()
			if err != nil {
				t.Fatal(err)
			}
			name, from := part.Name, 0
			if cut := strings.IndexByte(name, '['); cut >= 0 {
				var to int
				if _, err := fmt.Sscanf(name[cut:], "[%d:%d]", &from, &to); err != nil || to-from != len(values) {
					t.Fatalf("%q has %d elements, %v", name, len(values), err)
				}
				name = name[:cut]
			}
			at := slices.IndexFunc(got, func(tensor params.Tensor) bool { return tensor.Name == name })
			elements += copy(got[at].Data[from:], values)
		}
	}
	if err := differ(got, want); err != nil || elements != 600_000+1000+10_000+10+1 {
		t.Errorf("%d elements: %v", elements, err)
	}
}

// A synchronous server saves nothing by itself, neither with its first parameters nor at its stop: the leader rolls the job back to
// the set in etcd, or to its beginning, when the server starts again.
func TestSynchronousServerSavesNothingAlone(t *testing.T) {
	dir, b := t.TempDir(), newBook(1)
	s := startServer(t, b, 0, pserver.Config{CheckpointDir: dir})
	mustInit(t, connect(t, b, params.Config{Mode: params.Sync, Optimizer: heavy}), small(constant(1)))
	s.stop()
	if err := s.wait(); err != nil {
		t.Fatal(err)
	}
	if files, err := filepath.Glob(filepath.Join(dir, "ps-0", "*-*")); err != nil || len(files) > 0 {
		t.Errorf("expected no checkpoint, found %v, %v", files, err)
	}
	again := startServer(t, b, 0, pserver.Config{CheckpointDir: dir})
	d, err := control(t, again.addr).Describe(within(t), &pb.DescribeRequest{})
	if err != nil || d.State == pb.DescribeReply_STATE_READY {
		t.Errorf("expected a server without parameters, found %v, %v", d, err)
	}
}
