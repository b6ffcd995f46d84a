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

// moved: acknowledged blocks are not sent again.
func (call *TensorCall) moved() error { return nil }

func (call *TensorCall) frames(s *shard) []stream.Frame {
	set, dtype := call.set, call.set.cfg.DType
	take := func(f *stream.Frame, r *stream.Reply) error {
		b := &set.blocks[f.Index]
		if err := r.Floats(b.Of(call.dst), dtype); err != nil {
			return err
		}
		switch {
		case call.dst != nil:
			b.At = r.Head.Version
		case call.op == wire.Push && r.Head.Flags&wire.Duplicate == 0: // a repetition can be in At already
			b.At++
		}
		return nil
	}
	frames := s.frames[:0]
	for _, id := range s.blocks {
		b := &set.blocks[id]
		f := stream.Frame{
			Progress: &set.progress[id], Index: int(id), Take: take, Payload: b.Payload(call.src), Sum: b.Sum, Distance: b.Size,
			Head: wire.Header{Op: call.op, Argument: call.argument, Step: call.step, Block: id, Version: call.version},
		}
		f.Size = len(f.Payload)
		if dtype == wire.BFloat16 {
			f.Head.DType = dtype // of a pull; servers send float32 without a request
		}
		if f.Payload != nil {
			f.Head.DType = b.DType
		}
		if call.dst != nil {
			f.Size = max(f.Size, dtype.Size()*b.Len)
		}
		if call.op == wire.Push || call.op == wire.PushPull {
			f.Head.Version = b.At
		}
		frames = append(frames, f)
	}
	return frames
}
