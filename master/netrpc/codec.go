package netrpc

import (
	"bufio"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"net"
	"net/rpc"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"trainmaster/master/netrpc/wire"
	"trainmaster/taskqueue"
)

// maxUnanswered requests of a connection are read; then nothing more is.
const maxUnanswered = 16

// codec is net/rpc's gob codec with bounds on what comes in and a deadline on what goes
// out. It ends the connection's context as soon as nothing can be read any more, so that
// nobody waits for a task on its behalf.
type codec struct {
	ctx         context.Context // of the connection
	conn        net.Conn
	timeouts    timeouts
	cancel      context.CancelFunc
	undelivered func(body any)
	log         *logrus.Entry

	in         *wire.Bound
	dec        *gob.Decoder
	request    rpc.Request   // whose body comes next
	unanswered chan struct{} // a token for each request that is read and not answered

	enc *gob.Encoder
	w   *bufio.Writer

	mu      sync.Mutex
	slots   chan struct{}  // of the server: a token for each large message in memory
	holding map[uint64]int // how many the requests of this connection have, by number: a stranger's may repeat
}

func newCodec(c *connection, conn net.Conn, r *bufio.Reader, cancel context.CancelFunc) *codec {
	w := bufio.NewWriterSize(conn, 4096)
	codec := &codec{
		ctx: c.ctx, conn: conn, timeouts: c.server.timeouts, cancel: cancel, undelivered: c.undelivered, log: c.server.Log,
		in: wire.NewBound(r), unanswered: make(chan struct{}, maxUnanswered),
		enc: gob.NewEncoder(w), w: w,
		slots: c.server.large, holding: map[uint64]int{},
	}
	codec.in.Began, codec.in.Ended = codec.began, codec.ended
	codec.dec = gob.NewDecoder(codec.in)
	return codec
}

// began is told of a message of which something is still under way.
func (c *codec) began(length int) error {
	if length > wire.MaxShortMessage {
		if err := c.hold(c.request.Seq); err != nil {
			return err
		}
	}
	return c.conn.SetReadDeadline(time.Now().Add(c.timeouts.message))
}

func (c *codec) ended() error { return c.conn.SetReadDeadline(time.Time{}) }

// hold waits until there is memory for a large message.
func (c *codec) hold(seq uint64) error {
	timer := time.NewTimer(c.timeouts.message)
	defer timer.Stop()
	select {
	case c.slots <- struct{}{}:
	case <-timer.C:
		return fmt.Errorf("%d large messages are in memory, no more are taken now", cap(c.slots))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.holding[seq]++
	return nil
}

func (c *codec) release(seq uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.holding[seq] == 0 {
		return
	}
	<-c.slots
	if c.holding[seq]--; c.holding[seq] == 0 {
		delete(c.holding, seq)
	}
}

// releaseAll is for a connection that ended.
func (c *codec) releaseAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, held := range c.holding {
		for range held {
			<-c.slots
		}
	}
	clear(c.holding)
}

func (c *codec) ReadRequestHeader(r *rpc.Request) error {
	c.unanswered <- struct{}{}
	c.in.Limit = wire.MaxShortMessage
	if err := c.dec.Decode(r); err != nil {
		c.cancel()
		if !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
			c.log.WithError(err).WithField("peer", c.conn.RemoteAddr().String()).Warn("connection closed")
		}
		return io.EOF // anything else would be printed to the standard logger
	}
	c.request = *r
	switch r.ServiceMethod {
	case wire.Service + ".ReportDataset", wire.Service + ".GetTask":
		c.in.Limit = wire.MaxMessage
	}
	return nil
}

// ReadRequestBody decodes the argument of a call. A finished task comes with all its
// chunks, which nobody looks at: whether there are any is enough, and takes less memory.
func (c *codec) ReadRequestBody(body any) error {
	task, ok := body.(*taskqueue.Task)
	if !ok {
		return c.dec.Decode(body)
	}
	defer c.release(c.request.Seq)
	var light struct {
		Index  int
		Chunks []struct{ Idx int }
		Token  taskqueue.Token
	}
	if err := c.dec.Decode(&light); err != nil {
		return err
	}
	*task = taskqueue.Task{Index: light.Index, Token: light.Token}
	if len(light.Chunks) > 0 {
		task.Chunks = make([]taskqueue.Chunk, 1)
	}
	return nil
}

func (c *codec) WriteResponse(r *rpc.Response, body any) error {
	defer func() { <-c.unanswered }()
	c.release(r.Seq)
	err := c.ctx.Err() // nobody is there any more
	if err == nil {
		err = c.conn.SetWriteDeadline(time.Now().Add(c.timeouts.write))
	}
	if err == nil {
		err = c.enc.Encode(r)
	}
	if err == nil {
		err = c.enc.Encode(body)
	}
	if err == nil {
		err = c.w.Flush()
	}
	if err != nil {
		c.undelivered(body)
		c.conn.Close()
	}
	return err
}

func (c *codec) Close() error { return c.conn.Close() }
