package shards

import (
	"trainmaster/pserver/wire"
	"trainmaster/trainer/params/plan"
	"trainmaster/trainer/params/stream"
)

// TensorCall is one operation on the blocks of all shards. src and dst are in the order of the tensors given to Init.
type TensorCall struct {
	request
	set      *Set
	src, dst []plan.Tensor
}

// Tensors returns a call that sends src and fills dst. src is nil if the operation sends nothing, dst if it returns nothing.
func (set *Set) Tensors(op wire.Op, step uint64, argument uint32, src, dst []plan.Tensor) *TensorCall {
	return &TensorCall{request: request{op: op, step: step, argument: argument}, set: set, src: src, dst: dst}
}

func (call *TensorCall) parts(s *shard) int { return len(s.blocks) }

func (call *TensorCall) part(s *shard, i int) *plan.Progress {
	return &call.set.blocks[s.blocks[i]].Progress
}

// moved: acknowledged blocks are not sent again.
func (call *TensorCall) moved() error {
	call.resumed = true
	return nil
}

func (call *TensorCall) frames(s *shard, again bool) []stream.Frame {
	set := call.set
	dtype := set.cfg.DType
	f := stream.Frame{Head: wire.Header{Op: call.op, Argument: call.argument, Step: call.step}}
	f.Fill = func(f *stream.Frame, body []byte) stream.Payload {
		b := &set.blocks[f.Index]
		payload := b.Payload(call.src)
		if f.Head.DType == wire.BFloat16 && body != nil {
			body = body[len(payload):] // the server widens it in place
		}
		copy(body, payload)
		return stream.Payload{Bytes: payload, Standing: true, Sum: b.Sum, Size: b.Size}
	}
	f.Take = func(f *stream.Frame, r *stream.Reply) error {
		b := &set.blocks[f.Index]
		if err := r.Floats(b.Of(call.dst), dtype); err != nil {
			return err
		}
		b.Pending, b.Version = false, r.Head.Version
		switch {
		case call.dst != nil:
			b.At = r.Head.Version
		case call.op == wire.Push && r.Head.Flags&wire.Duplicate == 0: // a repetition can be in At already
			b.At++
		}
		return nil
	}
	s.frames = s.frames[:0]
	for _, id := range s.blocks {
		b := &set.blocks[id]
		if !b.Pending {
			continue
		}
		payload := b.Payload(call.src)
		if again {
			// The sum differs from the first sum if the caller changed the gradient during the call, which is not allowed. With the
			// old sum the server would refuse every repetition.
			b.Sum = wire.Checksum(0).Add(payload)
		}
		f.Index, f.Size = int(id), len(payload)
		f.Head.Block, f.Head.Version, f.Head.DType = id, call.version, wire.Bytes
		if dtype == wire.BFloat16 {
			f.Head.DType = dtype // of a pull; servers send float32 without a request
		}
		if payload != nil {
			f.Head.DType = b.DType
		}
		if call.dst != nil {
			f.Size = max(f.Size, dtype.Size()*b.Len)
		}
		if call.op == wire.Push || call.op == wire.PushPull {
			f.Head.Version = b.At
		}
		s.frames = append(s.frames, f)
	}
	return s.frames
}
