package dataport

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"math"
	"net"
	"os"
	"runtime/debug"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"trainmaster/pserver/floats"
	core "trainmaster/pserver/shard"
	"trainmaster/pserver/sharedmem"
	"trainmaster/pserver/wire"
)

const (
	// readAhead is small: headers and little payloads share a read, a block goes straight into its buffer.
	readAhead = 4 << 10
	// readPiece is how much of a payload is read before it is summed, while it is in the cache.
	readPiece = 64 << 10
	// queued is how many replies wait for the sender of a connection; then its reader waits too.
	queued = 4
	// Replies with less of a body are gathered into one write, up to batched bytes.
	littleReply = 4 << 10
	batched     = 16 << 10
	// lingering is the time for a refused peer to read the reason and close.
	lingering = 250 * time.Millisecond
)

// conn is one data connection. Two goroutines own it: serve reads and handles
// frames in order, send writes the replies in the same order.
type conn struct {
	shard      *core.Shard
	socket     *Socket // that the shard offers, nil: none
	buffers    *buffers
	sharedPool *sharedPool
	limits     *Limits
	stop       <-chan struct{} // closed when the server stops
	log        *logrus.Entry

	nc net.Conn
	r  *bufio.Reader

	raw  [wire.HeaderSize]byte
	head wire.Header // of the frame being handled

	trainer *core.Trainer // nil before the hello
	view    *core.View
	shared  *shared // memory with the trainer, nil: none
	slot    *buffer // of it, for the frame being handled; nil: payloads go through the socket

	patience time.Time // when the frame being handled is answered although it can succeed later; zero: not known yet

	out     reply // to the frame being handled, here because a [core.Sink] in a local variable would be allocated for each frame
	replies chan reply
}

// serve reads and handles frames until the peer closes or violates the protocol, or the server closes the connection.
func (c *conn) serve() {
	c.replies = make(chan reply, queued)
	var sender sync.WaitGroup
	sender.Go(c.send)
	var end error
	for end == nil {
		buf, isFinite, err := c.read()
		var fault *wire.Fault
		if err != nil && !errors.As(err, &fault) {
			c.buffers.give(buf)
			end = err
			break
		}
		c.out, c.patience = answer(&c.head, c.shard.Epoch()), time.Time{}
		if fault == nil {
			fault = c.handle(buf, isFinite, &c.out)
		}
		if fault != nil {
			c.shard.Counters.Refused.Add(1)
			c.out = refusal(&c.head, c.shard.Epoch(), fault)
		}
		if c.out.buf == nil {
			c.buffers.give(buf)
		}
		c.replies <- c.out
		if fault != nil && fault.Code.Fatal() {
			end = fault
		}
	}
	if c.trainer != nil {
		c.trainer.Disconnected()
	}
	close(c.replies)
	sender.Wait()
	c.close(end)
}

// close logs the reason, which the peer can read first, and frees the connection.
func (c *conn) close(reason error) {
	var fault *wire.Fault
	switch {
	case errors.As(reason, &fault):
		c.log.WithError(reason).Warn("data connection closed: request refused")
		c.linger()
	case errors.Is(reason, io.EOF), errors.Is(reason, net.ErrClosed):
	default:
		c.log.WithError(reason).Info("data connection broke")
	}
	c.nc.Close()
	c.releaseShared()
}

// linger waits until the peer has read the refusal and closed. A close with unread bytes would reset the connection and could
// discard the refusal.
func (c *conn) linger() {
	if c.nc.SetReadDeadline(time.Now().Add(lingering)) == nil {
		io.CopyN(io.Discard, c.nc, 4*wire.MaxPayload) //nolint:errcheck // the connection is closed in any case
	}
}

// read takes one frame in: the header into c.head, the payload into a buffer, nil if there is none. It checks the sum, and whether
// floats are all finite. A payload in shared memory stays there. Elements of bfloat16 become float32. The work is on pieces that fit
// the cache.
func (c *conn) read() (buf *buffer, isFinite bool, err error) {
	if c.r.Buffered() < wire.HeaderSize {
		var deadline time.Time
		if c.trainer == nil {
			deadline = time.Now().Add(c.limits.HelloTimeout)
		}
		if err := c.nc.SetReadDeadline(deadline); err != nil {
			return nil, false, err
		}
	}
	if _, err := io.ReadFull(c.r, c.raw[:]); err != nil {
		return nil, false, err
	}
	if err := c.head.Decode(&c.raw); err != nil {
		return nil, false, err
	}
	if fault := c.selectSlot(); fault != nil {
		return nil, false, fault
	}
	n := int(c.head.Length)
	if n == 0 {
		//guard:frame-header-checksum
		return nil, true, wire.Verify(&c.raw, nil)
	}
	if buf = c.room(); buf == nil {
		return nil, false, net.ErrClosed
	}
	if c.slot == nil && c.r.Buffered() < n {
		if err := c.nc.SetReadDeadline(time.Now().Add(c.limits.FrameTimeout)); err != nil {
			return buf, false, err
		}
	}
	isFloat := c.head.DType == wire.Float32 && n%4 == 0
	isHalf := c.head.DType == wire.BFloat16 && n <= wire.MaxPayload/2
	from := buf.bytes[:n]
	if isHalf {
		from = buf.bytes[n : 2*n] // so that they are widened in place
	}
	sum := wire.Begin(&c.raw)
	isFinite = true
	for lo := 0; lo < n; lo += readPiece {
		hi := min(lo+readPiece, n)
		if c.slot == nil {
			if _, err := io.ReadFull(c.r, from[lo:hi]); err != nil {
				return buf, false, err
			}
		}
		finite := true
		if isFloat {
			sum, finite = sum.AddFloats(buf.floats[lo/4 : hi/4])
		} else if sum = sum.Add(from[lo:hi]); isHalf {
			finite = wire.Widen(buf.floats[lo/2:hi/2], from[lo:hi])
		}
		isFinite = isFinite && finite
	}
	//guard:shared-payload-checked
	return buf, isFinite, sum.Check(&c.raw)
}

// room returns a buffer for one payload, nil if the server stops first.
func (c *conn) room() *buffer {
	if c.slot != nil {
		return c.slot
	}
	return c.buffers.take(c.stop)
}

// handle serves the frame and completes r, or returns a fault. It sets r.buf if r takes buf over.
func (c *conn) handle(buf *buffer, isFinite bool, r *reply) (fault *wire.Fault) {
	defer func() {
		//guard:panic-ends-connection
		if err := recover(); err != nil {
			c.log.WithFields(logrus.Fields{"op": c.head.Op, "panic": err, "stack": string(debug.Stack())}).Error("request failed: closing this connection")
			if r.buf != buf {
				c.buffers.give(r.buf)
			}
			fault = wire.Faultf(wire.Failed, "%v failed at shard %d by an error of the server, see its log", c.head.Op, c.shard.Index())
		}
	}()
	if c.head.Flags&^wire.Shared != 0 {
		return wire.Faultf(wire.Malformed, "a request with flags %#x", uint8(c.head.Flags))
	}
	if c.trainer == nil || c.head.Op == wire.Hello {
		return c.hello(buf, r)
	}
	if fault := c.checkShard(); fault != nil {
		return fault
	}
	if c.head.Op >= wire.LookupRows {
		return c.handleRows(buf, r)
	}
	b, fault := c.check(buf, isFinite)
	if fault != nil {
		return fault
	}
	switch c.head.Op {
	case wire.Pull:
		return c.pull(b, r)
	case wire.Push, wire.PushPull:
		return c.push(b, buf, r)
	case wire.Stage:
		gradient, values := gradientOf(&c.head), c.values(buf, b.Len)
		refused := c.shard.StageBlock(c.view, b, c.trainer, gradient, values)
		for c.await(refused) {
			refused = c.shard.StageBlock(c.view, b, c.trainer, gradient, values)
		}
		fault = faultOf(refused)
	case wire.Put:
		fault = faultOf(c.shard.Put(c.view, b, c.head.Incarnation, c.values(buf, b.Len), time.Now()))
	}
	if fault == nil {
		r.end()
	}
	return fault
}

// push applies a gradient. If that is refused for now, it waits and tries again.
func (c *conn) push(b *core.Block, buf *buffer, r *reply) *wire.Fault {
	update, fault := updateOf(&c.head)
	if fault != nil {
		return fault
	}
	var out core.Sink
	if c.head.Op == wire.PushPull {
		r.buf, r.head.DType = buf, c.head.DType
		out = r
	}
	result, refused := c.shard.Push(c.view, b, c.trainer, update, c.values(buf, b.Len), out)
	for c.await(refused) {
		result, refused = c.shard.Push(c.view, b, c.trainer, update, c.values(buf, b.Len), out)
	}
	if refused != nil {
		return faultOf(refused)
	}
	if out == nil {
		r.result(result)
	}
	r.end()
	return nil
}

// await reports whether a refused request can succeed now. It waits for that, for all attempts of a frame together up to the wait of a
// pull.
func (c *conn) await(refused *core.Refusal) bool {
	if refused == nil || refused.Retry == nil {
		return false
	}
	if c.patience.IsZero() {
		c.patience = time.Now().Add(c.limits.PullWait)
	}
	timer := time.NewTimer(time.Until(c.patience))
	defer timer.Stop()
	select {
	case <-refused.Retry:
		return true
	case <-timer.C:
	case <-c.stop:
	}
	return false
}

// hello binds the connection to a trainer.
func (c *conn) hello(buf *buffer, r *reply) *wire.Fault {
	switch {
	case c.trainer != nil:
		return wire.Faultf(wire.Malformed, "a second hello on one connection")
	case c.head.Op != wire.Hello:
		return wire.Faultf(wire.Malformed, "%v before hello", c.head.Op)
	case c.head.Incarnation == 0 || c.head.Block > math.MaxUint32:
		return wire.Faultf(wire.Malformed, "hello of trainer %d with incarnation %d", c.head.Block, c.head.Incarnation)
	case int64(c.head.Argument) != int64(c.shard.Index()):
		return wire.Faultf(wire.WrongShard, "this is shard %d, not %d", c.shard.Index(), c.head.Argument)
	}
	if err := c.shard.CheckJob(wire.JobOf(c.head.Step)); err != nil {
		return wire.Faultf(wire.WrongShard, "%v", err)
	}
	var digest [wire.DigestSize]byte
	if buf != nil && c.head.Length >= wire.DigestSize {
		digest = [wire.DigestSize]byte(buf.bytes)
		if meant := buf.bytes[wire.DigestSize:c.head.Length]; len(meant) > 0 && (c.socket == nil || !bytes.Equal(meant, c.socket.Offer.Server[:])) {
			return wire.Faultf(wire.WrongShard, "socket of another server: expected the server that offered this socket")
		}
	}
	t, h, refused := c.shard.Join(uint32(c.head.Block), c.head.Incarnation, digest, c.head.Placement)
	if refused != nil {
		return faultOf(refused)
	}
	c.trainer, c.view = t, h
	t.Connected()
	c.log = c.log.WithField("trainer", t.Ordinal()).WithField("incarnation", t.Incarnation())
	r.head.Block, r.head.Placement = uint64(c.shard.Index()), h.Model().Placement.Epoch
	r.head.Version, r.head.JobEpoch = core.ClampVersion(c.shard.Version()), uint16(c.shard.JobEpoch())
	c.attachShared(r)
	if c.socket != nil {
		r.attach(c.socket.Offer.Append(nil))
	} else {
		r.end()
	}
	return nil
}

// checkShard refuses a frame that does not match the current state of the shard.
func (c *conn) checkShard() *wire.Fault {
	head, h := &c.head, c.view
	reads := head.Op == wire.Pull || head.Op == wire.LookupRows || head.Op == wire.ScanRows
	if head.Incarnation != c.trainer.Incarnation() {
		return wire.Faultf(wire.Malformed, "frame of incarnation %d on the connection of %d", head.Incarnation, c.trainer.Incarnation())
	}
	if head.Placement != h.Model().Placement.Epoch {
		return wire.Faultf(wire.OtherModel, "placement epoch %d, shard %d is at %d", head.Placement, c.shard.Index(), h.Model().Placement.Epoch)
	}
	if !reads && head.ShardEpoch != c.shard.Epoch() {
		return wire.Faultf(wire.Resync, "shard epoch %d, shard %d is at %d: it was restarted", head.ShardEpoch, c.shard.Index(), c.shard.Epoch())
	}
	if at := c.shard.JobEpoch(); !reads && uint32(head.JobEpoch) != at {
		return wire.Faultf(wire.Resync, "job epoch %d, shard %d is at %d", head.JobEpoch, c.shard.Index(), at)
	}
	if head.Op != wire.Put && !c.shard.Ready() {
		return faultOf(c.shard.Lacking())
	}
	if stages := head.Op == wire.Stage || head.Op == wire.StageRows; !reads && head.Op != wire.Put && stages != h.Model().Sync {
		return wire.Faultf(wire.WrongMode, "%v, but shard %d is updated in mode %s", head.Op, c.shard.Index(), h.Model().Mode())
	}
	return nil
}

// awaitVersion waits until a synchronous shard has the version that the frame demands.
func (c *conn) awaitVersion() *wire.Fault {
	if !c.view.Model().Sync {
		return nil
	}
	refused := c.shard.Reached(uint64(c.head.Version))
	for c.await(refused) {
		refused = c.shard.Reached(uint64(c.head.Version))
	}
	return faultOf(refused)
}

// check finds the block, and refuses a frame that does not match it.
func (c *conn) check(buf *buffer, isFinite bool) (*core.Block, *wire.Fault) {
	head, h := &c.head, c.view
	b := h.Block(head.Block)
	if b == nil {
		return nil, wire.Faultf(wire.NoSuchBlock, "shard %d does not hold block %d", c.shard.Index(), head.Block)
	}
	if head.Op == wire.Pull {
		if buf != nil {
			return nil, wire.Faultf(wire.BadLength, "pull of %s with a payload of %d bytes", b.Name(), head.Length)
		}
		return b, nil
	}
	if half := head.DType == wire.BFloat16 && head.Op != wire.Put; head.DType != wire.Float32 && !half {
		return nil, wire.Faultf(wire.BadDType, "%v for %s: payload is %v, expected %v", head.Op, b.Name(), head.DType, wire.Float32)
	}
	if expected := head.DType.Size() * b.Len; int(head.Length) != expected {
		return nil, wire.Faultf(wire.BadLength, "%v for %s: payload has %d bytes, expected %d of %v", head.Op, b.Name(), head.Length, expected, head.DType)
	}
	//guard:gradient-finite
	if !isFinite {
		i := floats.FirstNotFinite(buf.floats[:b.Len])
		if i < 0 {
			return nil, faultOf(core.RefuseChanged(head.Op.String(), b.Name()))
		}
		return nil, wire.Faultf(wire.NotFinite, "%v for %s: element %d is %v", head.Op, b.Name(), b.Offset+i, buf.floats[i])
	}
	return b, nil
}

func (c *conn) pull(b *core.Block, r *reply) *wire.Fault {
	if fault := c.awaitVersion(); fault != nil {
		return fault
	}
	if r.buf = c.room(); r.buf == nil {
		return wire.Faultf(wire.Stopping, "shard %d is shutting down", c.shard.Index())
	}
	r.head.DType = wire.Float32
	if c.head.DType == wire.BFloat16 {
		r.head.DType = wire.BFloat16
	}
	if refused := b.Pull(r); refused != nil {
		c.buffers.give(r.buf)
		return faultOf(refused)
	}
	r.end()
	c.shard.Counters.Pulled.Add(1)
	return nil
}

// send writes replies until the channel is closed, several small replies in one write. After an error it drains the channel to
// free the buffers.
func (c *conn) send() {
	var (
		little []byte
		broken bool
	)
	write := func(p []byte, memory *os.File) {
		if broken || len(p) == 0 {
			return
		}
		err := c.nc.SetWriteDeadline(time.Now().Add(c.limits.FrameTimeout))
		switch {
		case err != nil:
		case memory != nil:
			err = sharedmem.Send(sharedmem.Through(c.nc), p, memory)
		default:
			_, err = c.nc.Write(p)
		}
		if err != nil {
			broken = true
			c.nc.Close()
		}
	}
	for r := range c.replies {
		body := r.throughSocket()
		if len(body) < littleReply {
			little = append(append(little, r.raw[:]...), body...)
			c.buffers.give(r.buf)
			if len(c.replies) > 0 && len(little) < batched && r.memory == nil {
				continue
			}
		}
		write(little, r.memory)
		if r.memory != nil {
			r.memory.Close()
		}
		if little = little[:0]; len(body) >= littleReply {
			copy(r.buf.frame, r.raw[:])
			write(r.buf.frame[:wire.HeaderSize+len(body)], nil)
			c.buffers.give(r.buf)
		}
	}
}
