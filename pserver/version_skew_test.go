package pserver_test

import (
	"testing"

	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/pserver"
	"trainmaster/trainer/params"
)

// versionSkew starts two synchronous servers with a client. Only the second server has the last version.
func versionSkew(t *testing.T, cfg pserver.Config) (b *book, servers []*server, c *params.Client, values []params.Tensor) {
	t.Helper()
	b = newBook(2)
	servers = []*server{startServer(t, b, 0, cfg), startServer(t, b, 1, cfg)}
	c = connect(t, b, params.Config{Mode: params.Sync})
	values = tensors(constant(0))
	mustInit(t, c, values)
	if err := c.Stage(within(t), 0, tensors(constant(1)), 1); err != nil {
		t.Fatal(err)
	}
	if err := newMaster(t, b).commit(within(t), 1, by(0, 1)); err != nil {
		t.Fatal(err)
	}
	if err := c.Stage(within(t), 1, tensors(constant(1)), 1); err != nil {
		t.Fatal(err)
	}
	request := &pb.CommitStepRequest{Version: 2, JobEpoch: 1, Contributors: []*pb.StepContributor{by(0, 1)}}
	if _, err := control(t, servers[1].addr).CommitStep(within(t), request); err != nil {
		t.Fatal(err)
	}
	return b, servers, c, values
}

// A running server that is one version behind adopts the version of the others if the gradients of the step are unknown. If the
// step is known, it needs the gradients.
func TestServerBehindAdoptsVersionOfOthers(t *testing.T) {
	b, servers, c, values := versionSkew(t, pserver.Config{})
	m := newMaster(t, b)
	reply, err := control(t, servers[0].addr).CommitStep(within(t), &pb.CommitStepRequest{Version: 2, JobEpoch: 1})
	if err != nil || !reply.GetAdopted() || reply.GetVersion() != 2 {
		t.Fatalf("%v, %v; expected that version 2 is adopted", reply, err)
	}
	if got, err := c.Pull(within(t), values, 0); err != nil || got != 2 {
		t.Fatalf("pulled version %d, %v; expected 2", got, err)
	}
	if values[0].Data[0] == values[1].Data[0] {
		t.Error("the server that was behind has made version 2")
	}
	if err := c.Stage(within(t), 2, tensors(constant(1)), 1); err != nil {
		t.Fatal(err)
	}
	if err := m.commit(within(t), 3, by(0, 1)); err != nil {
		t.Error(err)
	}
	if err := m.commit(within(t), 4, by(0, 1)); err == nil {
		t.Error("a version without stages was committed")
	}
}

// Servers that were stopped in order restart with one version, the greatest, even if the first server lacks its step. No master needs
// to know that version.
func TestServersStoppedAVersionApart(t *testing.T) {
	for first := range 2 {
		dir := t.TempDir()
		_, servers, _, values := versionSkew(t, pserver.Config{CheckpointDir: dir})
		for _, i := range []int{first, 1 - first} {
			servers[i].stop()
			if err := servers[i].wait(); err != nil {
				t.Fatal(err)
			}
		}
		b := startCluster(t, dir, 2, nil).book
		c := connect(t, b, params.Config{Mode: params.Sync, Ordinal: 1})
		mustInit(t, c, values)
		if got, err := c.Pull(within(t), values, 0); err != nil || got != 2 {
			t.Fatalf("pulled version %d, %v; expected 2", got, err)
		}
		for _, addr := range b.addrs {
			if d, err := control(t, addr).Describe(within(t), &pb.DescribeRequest{}); err != nil || d.GetVersion() != 2 {
				t.Errorf("a server is at version %d, %v; expected 2", d.GetVersion(), err)
			}
		}
		if err := c.Stage(within(t), 2, tensors(constant(1)), 1); err != nil {
			t.Fatal(err)
		}
		if err := newMaster(t, b).commit(within(t), 3, by(1, 1)); err != nil {
			t.Error(err)
		}
	}
}
