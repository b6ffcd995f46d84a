package netrpc_test

import (
	"bytes"
	"math"
	"testing"

	"trainmaster/master"
	"trainmaster/master/netrpc/wire"
)

// A commit number without the proof of a master of the job is ignored. It ends no master.
func TestForgedCommitNumberIsIgnored(t *testing.T) {
	r := serve(t, 5, master.Config{})
	c := dial(t, r.Addr)
	var joined wire.JoinReply
	if err := c.Call("RPCServer.Join", wire.JoinRequest{ID: "forger"}, &joined); err != nil {
		t.Fatal(err)
	}
	request := wire.NextRequest{Trainer: joined.Trainer, JobID: joined.JobID}
	var first wire.NextReply
	next := func(seen uint64, proof []byte) (reply wire.NextReply) {
		request.Seq++
		request.Ack, request.SeenCommit, request.SeenProof = request.Seq, seen, proof
		if err := c.Call("RPCServer.Next", request, &reply); err != nil {
			t.Errorf("commit %d with proof %x: got %v", seen, proof, err)
		}
		return reply
	}
	first = next(0, nil)
	if first.Commit == 0 || len(first.CommitProof) == 0 {
		t.Fatalf("reply: found commit %d and proof %x", first.Commit, first.CommitProof)
	}
	for _, seen := range []uint64{first.Commit + 1, first.Commit + 1000, math.MaxUint64} {
		for _, proof := range [][]byte{nil, {}, first.CommitProof, first.CommitProof[:1], make([]byte, len(first.CommitProof)), bytes.Repeat([]byte("x"), 4096)} {
			next(seen, proof)
		}
	}
	last := next(first.Commit, first.CommitProof)
	if r.Ended() || !r.Leading() || last.Commit < first.Commit {
		t.Error("forged commit number: expected the master to continue")
	}
}
