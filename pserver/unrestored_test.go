package pserver_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/pserver/checkpoint"
	"trainmaster/trainer/params"
)

// name enters a set into the book, as an operator's command enters it into etcd.
func (b *book) name(set []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.job.LatestSet = set
	b.job.Named++
}

// wantUnrestored waits until all servers wait without parameters, and checks that each says all of the texts.
func wantUnrestored(t testing.TB, what string, c *cluster, texts ...string) {
	t.Helper()
	ctx := within(t)
	for _, s := range c.servers {
		client := control(t, s.addr)
		reply, err := client.Describe(ctx, &pb.DescribeRequest{})
		for ; reply.GetUnrestored() == "" && ctx.Err() == nil; reply, err = client.Describe(ctx, &pb.DescribeRequest{}) {
			select {
			case err := <-s.done:
				t.Fatalf("%s: the server ended: %v", what, err)
			case <-time.After(10 * time.Millisecond): // before the next question
			}
		}
		if err != nil || reply.GetState() == pb.DescribeReply_STATE_READY {
			t.Fatalf("%s: state %v, %v: expected a server without parameters", what, reply.GetState(), err)
		}
		for _, text := range texts {
			if !strings.Contains(reply.GetUnrestored(), text) {
				t.Errorf("%s: expected %q in %q", what, text, reply.GetUnrestored())
			}
		}
	}
}

// harms are the kinds of damage to the files of a checkpoint, with the error of a server.
var harms = map[string]struct {
	file string
	do   func(path string) error
	says string
}{
	"damaged segment":    {checkpoint.WeightsFile, flipByte, "the manifest says"},
	"truncated manifest": {checkpoint.ManifestFile, func(path string) error { return os.Truncate(path, 100) }, "found 100 bytes"},
	"missing file":       {checkpoint.PushesFile, os.Remove, ""},
	"missing manifest":   {checkpoint.ManifestFile, os.Remove, ""},
}

func flipByte(path string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	data[len(data)/2] ^= 2
	return os.WriteFile(path, data, 0o600)
}

// F52: servers load only the set that etcd names. While a file of it is damaged they wait, report the file and the command,
// and accept no parameters from a trainer. They continue with the set that an operator names.
func TestDamagedSetIsRefusedUntilAnotherIsNamed(t *testing.T) {
	for name, harm := range harms {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			start, grads := small(random(1)), small(random(2))
			c, client := trainedCluster(t, dir, start)
			mustPush(t, client, 1, grads)
			first := c.mustTake(t)
			mustPush(t, client, 2, grads)
			second := c.mustTake(t)
			c.leave(t)
			set, err := checkpoint.ParseSet(second)
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(dir, "ps-1", set.Shards[1].Generation.String(), harm.file)
			if err := harm.do(path); err != nil {
				t.Fatal(err)
			}

			c = startCluster(t, dir, 2, second)
			wantUnrestored(t, name, c, filepath.Dir(path), harm.file, harm.says, nameOf(t, second), "master checkpoint use SET --checkpoint-dir")
			_, err = control(t, c.servers[0].addr).InitParameters(within(t), &pb.InitParametersRequest{Incarnation: 7})
			if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), harm.file) {
				t.Errorf("parameters of a trainer: %v", err)
			}
			c.name(first)
			client = wantModel(t, "the set that an operator named", c.book, start, grads, 1)
			mustPush(t, client, 2, grads)
			damaged := set.Number
			set, err = checkpoint.ParseSet(c.mustTake(t))
			if err != nil || set.Number <= damaged {
				t.Errorf("the next set is %v, %v; expected a greater number than %d of the damaged one", set, err, damaged)
			}
		})
	}
}

// F52, in a job with rollback: running servers refuse a damaged set in the same way, and serve no trainer until the leader
// names another set.
func TestRewindToDamagedSetIsRefused(t *testing.T) {
	for name, harm := range harms {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			start, grads := small(random(1)), small(random(2))
			c, client := trainedCluster(t, dir, start)
			first := c.mustTake(t)
			mustPush(t, client, 1, grads)
			second := c.mustTake(t)
			set, err := checkpoint.ParseSet(second)
			if err != nil {
				t.Fatal(err)
			}
			if err := harm.do(filepath.Join(dir, "ps-1", set.Shards[1].Generation.String(), harm.file)); err != nil {
				t.Fatal(err)
			}
			if err := c.client.Rollback(within(t), 1, 2, second, nil); err == nil || !strings.Contains(err.Error(), harm.file) {
				t.Errorf("rollback: %v", err)
			}
			wantUnrestored(t, name, c, harm.file, harm.says, nameOf(t, second), "master checkpoint use SET")
			brief, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond) // the server serves no trainer
			defer cancel()
			if late, err := params.Connect(brief, params.Config{Addrs: c.complete, Log: quiet(), Mode: params.Async, Optimizer: heavy, Ordinal: 5, Incarnation: 300}); err == nil {
				if _, err := late.Pull(brief, small(constant(0)), 0); err == nil {
					t.Error("a trainer gets parameters")
				}
				late.Close()
			}
			if err := c.client.Rollback(within(t), 1, 3, first, nil); err != nil {
				t.Fatal(err)
			}
			again := connect(t, c.book, params.Config{Mode: params.Async, Optimizer: heavy, Ordinal: 8, Incarnation: 101, JobEpoch: 3})
			values := small(constant(0))
			mustInit(t, again, values)
			if err := differ(values, start); err != nil {
				t.Errorf("after a rollback to the previous set: %v", err)
			}
		})
	}
}
