package pserver_test

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/pserver"
	"trainmaster/pserver/checkpoint"
	"trainmaster/pserver/staleness"
	"trainmaster/trainer/params"
)

func scaleBeyond(limit uint64) params.Staleness {
	return params.Staleness{Policy: staleness.Scale, Limit: limit}
}

// mustPushOnes has gradients of one applied, all or an error.
func mustPushOnes(t testing.TB, c *params.Client, step uint64, values []params.Tensor) {
	t.Helper()
	if _, err := c.PushPull(within(t), step, 1, tensors(constant(1)), values); err != nil {
		t.Fatal(err)
	}
}

func counters(t testing.TB, addr string) *pb.ParameterServerCounters {
	t.Helper()
	reply, err := control(t, addr).Describe(within(t), &pb.DescribeRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return reply.GetCounters()
}

// A trainer's own pushes make its gradients no staler.
func TestOwnPushesAreNotStale(t *testing.T) {
	book := startServers(t, 2, pserver.Config{})
	c := connect(t, book, params.Config{Mode: params.Async, Staleness: scaleBeyond(0)})
	values := tensors(constant(0))
	mustInit(t, c, values)
	for step := range uint64(4) {
		if version, err := c.Push(within(t), step+1, 1, tensors(constant(1))); err != nil || version != step+1 {
			t.Fatalf("push %d: version %d, %v", step+1, version, err)
		}
	}
	mustPushOnes(t, c, 5, values)
	if err := differ(values, tensors(constant(-5*plainSGD.LearningRate))); err != nil {
		t.Error(err)
	}
}

func TestStaleGradientIsScaled(t *testing.T) {
	book := startServers(t, 2, pserver.Config{})
	bound := scaleBeyond(1)
	slow := connect(t, book, params.Config{Mode: params.Async, Staleness: bound})
	fast := connect(t, book, params.Config{Mode: params.Async, Ordinal: 1, Staleness: bound})
	mine, theirs := tensors(constant(0)), tensors(constant(0))
	mustInit(t, slow, mine)
	mustInit(t, fast, theirs)
	for step := range uint64(4) {
		mustPushOnes(t, fast, step+1, theirs)
	}
	mustPushOnes(t, slow, 1, mine)
	if err := differ(mine, tensors(constant(-4.25*plainSGD.LearningRate))); err != nil {
		t.Error(err)
	}
	addrs, _ := book.complete(within(t))
	if c := counters(t, addrs[0]); c.GetStaleScaled() == 0 || c.GetStalenessMax() != 4 {
		t.Errorf("counters %v", c)
	}
}

// A server whose checkpoint has a policy that this version does not support waits, and names the policy.
func TestRemovedPolicyInCheckpointIsRefused(t *testing.T) {
	dir, b := t.TempDir(), newBook(1)
	first := startServer(t, b, 0, pserver.Config{CheckpointDir: dir})
	c := connect(t, b, params.Config{Mode: params.Async, Staleness: scaleBeyond(3)})
	mustInit(t, c, tensors(constant(0)))
	c.Close()
	first.stop()
	first.wait()
	folders, err := filepath.Glob(filepath.Join(dir, "ps-0", "*-*"))
	if err != nil || len(folders) == 0 {
		t.Fatal(folders, err)
	}
	for _, folder := range folders {
		must(t, rewriteManifest(folder, func(m *checkpoint.Manifest) { m.Staleness.Policy = "reject" }))
	}
	set, err := checkpoint.ParseSet(b.state().LatestSet)
	must(t, err)
	text, err := os.ReadFile(filepath.Join(dir, "ps-0", set.Shards[0].Generation.String(), "MANIFEST.json"))
	must(t, err)
	set.Shards[0].SHA256 = fmt.Sprintf("%x", sha256.Sum256(text))
	b.mu.Lock()
	b.job.LatestSet, err = set.Encode()
	b.mu.Unlock()
	must(t, err)
	second := startServer(t, b, 0, pserver.Config{CheckpointDir: dir})
	wantUnrestored(t, "a removed policy", &cluster{book: b, servers: []*server{second}}, `staleness policy "reject": expected one of apply, scale`)
}

// The bound is the job's: others are refused, also by a server that has it from a checkpoint.
func TestStalenessBelongsToTheJob(t *testing.T) {
	dir, b := t.TempDir(), newBook(1)
	first := startServer(t, b, 0, pserver.Config{CheckpointDir: dir})
	c := connect(t, b, params.Config{Mode: params.Async, Staleness: scaleBeyond(3)})
	mustInit(t, c, tensors(constant(0)))
	differs := func() {
		t.Helper()
		err := connect(t, b, params.Config{Mode: params.Async, Ordinal: 1}).Init(within(t), tensors(constant(0)))
		if err == nil || !strings.Contains(err.Error(), `has staleness bound "scale beyond 3", yours "apply"`) {
			t.Errorf("another bound: %v", err)
		}
	}
	differs()
	c.Close()
	first.stop()
	first.wait()
	startServer(t, b, 0, pserver.Config{CheckpointDir: dir})
	differs()
	sync := params.Config{Mode: params.Sync, Staleness: scaleBeyond(3), Incarnation: 1, Optimizer: plainSGD, Addrs: b.complete}
	if err := sync.Validate(); err == nil || !strings.Contains(err.Error(), "in mode sync: expected none") {
		t.Errorf("a bound in mode sync: %v", err)
	}
}
