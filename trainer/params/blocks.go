package params

import (
	"trainmaster/pserver/wire"
	"trainmaster/trainer/params/plan"
	"trainmaster/trainer/params/stream"
)

// blockCall is one operation on the blocks of all shards. src and dst are in the order of Client.declared; nil if the operation has
// none.
type blockCall struct {
	request
	client   *Client
	src, dst []Tensor
}

func (call *blockCall) parts(s *shard) int { return len(s.blocks) }

func (call *blockCall) part(s *shard, i int) *plan.Progress {
	return &call.client.blocks[s.blocks[i]].Progress
}

// moved: acknowledged blocks are not sent again.
func (call *blockCall) moved() error {
	call.resumed = true
	return nil
}

func (call *blockCall) frames(s *shard, again bool) []stream.Frame {
	c := call.client
	dtype := wireDTypes[c.cfg.WireDType]
	f := stream.Frame{Head: wire.Header{Op: call.op, Argument: call.argument, Step: call.step}}
	f.Fill = func(f *stream.Frame, body []byte) stream.Payload {
		b := &c.blocks[f.Index]
		payload := b.Payload(call.src)
		if f.Head.DType == wire.BFloat16 && body != nil {
			body = body[len(payload):] // the server widens it in place
		}
		copy(body, payload)
		return stream.Payload{Bytes: payload, Standing: true, Sum: b.Sum, Size: b.Size}
	}
	f.Take = func(f *stream.Frame, r *stream.Reply) error {
		b := &c.blocks[f.Index]
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
		b := &c.blocks[id]
		if !b.Pending {
			continue
		}
		payload := b.Payload(call.src)
		if again {
			// The sum differs from the first one if the caller changed the gradient during the call, which is not allowed. With the
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
