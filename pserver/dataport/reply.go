package dataport

import (
	"os"

	"trainmaster/pserver/floats"
	core "trainmaster/pserver/shard"
	"trainmaster/pserver/wire"
)

// reply is a frame to be sent. buf holds its body and is given back afterwards.
type reply struct {
	head wire.Header
	raw  [wire.HeaderSize]byte
	body []byte
	buf  *buffer

	memory *os.File // that goes along with a hello's reply, nil: none

	sum   wire.Checksum
	begun bool
}

// Begin implements [core.Sink]: it fixes the header before the body is summed. Elements of its dtype follow.
func (r *reply) Begin(result core.Result, elements int) {
	r.result(result)
	r.head.Length = uint32(r.head.DType.Size() * elements)
	r.body = r.buf.bytes[:r.head.Length]
	r.encode()
	r.sum, r.begun = wire.Begin(&r.raw), true
}

// result puts the result of a call into the header.
func (r *reply) result(result core.Result) {
	r.head.Version = core.ClampVersion(result.Version)
	if result.Duplicate {
		r.head.Flags |= wire.Duplicate
	}
}

// Put implements [core.Sink]: it adds elements from lo on to the body and to the checksum, and reports whether they are finite.
func (r *reply) Put(lo int, piece []float32) (isFinite bool) {
	size := r.head.DType.Size()
	body := r.body[lo*size : (lo+len(piece))*size]
	if r.head.DType == wire.BFloat16 {
		wire.Narrow(body, piece)
		r.sum = r.sum.Add(body)
		return floats.Finite(piece)
	}
	copy(body, floats.Bytes(piece))
	r.sum, isFinite = r.sum.AddFloats(piece)
	return isFinite
}

// end makes the frame ready to be sent.
func (r *reply) end() {
	if !r.begun {
		r.encode()
		r.sum = wire.Begin(&r.raw)
	}
	r.sum.Store(&r.raw)
}

// attach completes the frame with a body: in buf, or a small separate one.
func (r *reply) attach(body []byte) {
	r.body, r.head.Length = body, uint32(len(body))
	r.encode()
	wire.Seal(&r.raw, body)
}

func (r *reply) encode() {
	if r.buf.isShared() {
		r.head.Flags |= wire.Shared
	}
	r.head.Encode(&r.raw)
}

// throughSocket returns the body that follows the header in the socket.
func (r *reply) throughSocket() []byte {
	if r.buf.isShared() {
		return nil
	}
	return r.body
}

// answer is the start of a reply to a request.
func answer(request *wire.Header, shardEpoch uint16) reply {
	return reply{head: wire.Header{
		Op: request.Op, Flags: wire.Reply, Block: request.Block, Incarnation: request.Incarnation,
		Placement: request.Placement, Step: request.Step, Sequence: request.Sequence,
		ShardEpoch: shardEpoch, JobEpoch: request.JobEpoch,
	}}
}

// refusal is a whole reply that carries a fault.
func refusal(request *wire.Header, shardEpoch uint16, fault *wire.Fault) reply {
	r := answer(request, shardEpoch)
	message := fault.Message[:min(len(fault.Message), wire.MaxMessage)]
	r.head.Flags |= wire.Error
	r.head.Argument, r.head.Version = uint32(fault.Code), fault.Version
	r.attach([]byte(message))
	return r
}
