package params

import (
	"context"

	"trainmaster/pserver/wire"
	"trainmaster/trainer/params/stream"
)

// blockCall is one operation on the blocks of all shards. src and dst are in the order of Client.declared; nil if the operation has
// none.
type blockCall struct {
	op       wire.Op
	step     uint64
	argument uint32
	version  uint32
	behind   bool // only blocks below version, which an earlier call brought
	resumed  bool // it was done in part before blocks were elsewhere
	src, dst []Tensor
}

// doBlocks makes a call at all shards with blocks. After a migration it sends unacknowledged blocks to their new owners.
func (c *Client) doBlocks(ctx context.Context, call *blockCall) error {
	has := func(s *shard) bool { return len(s.blocks) > 0 }
	do := func(ctx context.Context, s *shard) error { return c.doShard(ctx, s, call) }
	return c.do(ctx, has, do, func() error {
		call.resumed = true
		return nil
	})
}

// doShard makes a call at one shard. It returns an error only if trying again cannot help.
func (c *Client) doShard(ctx context.Context, s *shard, call *blockCall) error {
	for _, id := range s.blocks {
		if b := &c.blocks[id]; !call.resumed {
			b.Pending = !call.behind || b.Version < call.version
		}
	}
	restarted := func() {
		for _, id := range s.blocks {
			c.blocks[id].Pending = c.blocks[id].Pending || !call.behind
		}
	}
	return s.Do(ctx, restarted, func(again bool) []stream.Frame { return c.blockFrames(s, call, again) })
}

// blockFrames returns the frames of the blocks at a shard that are not acknowledged.
func (c *Client) blockFrames(s *shard, call *blockCall, again bool) []stream.Frame {
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
