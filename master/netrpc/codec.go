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

	"trainmaster/internal/largemsg"
	"trainmaster/master/netrpc/wire"
	"trainmaster/recordio"
	"trainmaster/taskqueue"
)

// maxUnanswered requests of a connection are read; then nothing more is.
const maxUnanswered = 16

// codec is the gob codec of net/rpc with limits on received messages and a deadline for sent messages. It ends the
// context of the connection when no further message can be read, so no request waits for a task for it.
type codec struct {
	ctx        context.Context // of the connection
	conn       net.Conn
	timeouts   timeouts
	cancel     context.CancelFunc
	connection *connection
	log        *logrus.Entry

	in         *wire.Bound
	dec        *gob.Decoder
	request    rpc.Request   // whose body comes next
	unanswered chan struct{} // a token for each request that is read and not answered

	enc *gob.Encoder
	w   *bufio.Writer

	fitting bool // the client's type of tasks was compared with ours
	placed  bool // a finished task has a place in large.Results
	hasTurn bool // whether a place in Server.turns is taken

	mu       sync.Mutex
	large    *largemsg.Messages // of the server
	host     string             // of the client
	incoming *largemsg.Message  // the large message that is arriving
	reported map[uint64]int     // places in large.reports of the requests of this connection, by number: another connection may use the same number
}

func newCodec(c *connection, conn net.Conn, r *bufio.Reader, cancel context.CancelFunc) *codec {
	w := bufio.NewWriterSize(conn, 4096)
	codec := &codec{
		ctx: c.ctx, conn: conn, timeouts: c.server.timeouts, cancel: cancel, connection: c, log: c.server.Log,
		in: wire.NewBound(r), unanswered: make(chan struct{}, maxUnanswered),
		enc: gob.NewEncoder(w), w: w,
		large: c.server.large, host: largemsg.HostOf(conn.RemoteAddr()), reported: map[uint64]int{},
	}
	codec.in.Began, codec.in.Grew, codec.in.Ended, codec.in.Arrived = codec.began, codec.grew, codec.ended, codec.arrived
	codec.in.Waits, codec.in.Whole = codec.giveTurn, codec.takeTurn
	codec.dec = gob.NewDecoder(codec.in)
	return codec
}

// maxLengthBytes is the size of the longest length prefix of a message in gob.
const maxLengthBytes = 9

// takeTurn waits for a place in Server.turns before a message of n bytes is decoded, and lets other goroutines run
// first. A large message takes a place for large messages.
func (c *codec) takeTurn(n int) {
	//guard:decoding-takes-turns
	if n <= wire.MaxShortMessage+maxLengthBytes {
		c.connection.server.takeTurn()
		c.hasTurn = true
	}
}

// giveTurn gives the place back, if there is one: no connection has it while it waits for bytes.
func (c *codec) giveTurn() {
	if c.hasTurn {
		c.connection.server.giveTurn()
		c.hasTurn = false
	}
}

// began is called for a message with bytes that have not arrived yet.
func (c *codec) began() error {
	//guard:message-timeout
	return c.conn.SetReadDeadline(time.Now().Add(c.timeouts.message))
}

// grew is called for each n bytes more of a large message.
func (c *codec) grew(n int) error {
	if c.incoming == nil {
		c.incoming = &largemsg.Message{Host: c.host, Conn: c.conn}
	}
	if err := c.large.Grow(c.incoming, n); !errors.Is(err, largemsg.ErrBusy) {
		return err
	}
	return wire.ErrBusy
}

// ended is called when nothing of a message is missing any more.
func (c *codec) ended() error {
	if c.incoming != nil {
		c.large.End(c.incoming)
		c.incoming = nil
	}
	return c.conn.SetReadDeadline(time.Time{})
}

// arrived takes a place in memory for a large message. A report keeps its place until it is answered. It is therefore
// refused if there is no place: later messages, such as a heartbeat, must not wait. A finished task keeps its place
// only while it is decoded.
func (c *codec) arrived() error {
	if c.request.ServiceMethod == getTask {
		c.large.Results <- struct{}{}
		c.placed = true
		return nil
	}
	if !c.large.TakeReport(c.host) {
		//guard:large-message-slots
		return wire.ErrBusy
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reported[c.request.Seq]++
	return nil
}

// decoded gives the place of a finished task back.
func (c *codec) decoded() {
	if c.placed {
		<-c.large.Results
		c.placed = false
	}
}

// release gives the place of an answered report back.
func (c *codec) release(seq uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reported[seq] == 0 {
		return
	}
	c.large.GiveReport(c.host)
	if c.reported[seq]--; c.reported[seq] == 0 {
		delete(c.reported, seq)
	}
}

// releaseAll gives all places back when the connection has ended.
func (c *codec) releaseAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, held := range c.reported {
		for range held {
			c.large.GiveReport(c.host)
		}
	}
	clear(c.reported)
}

const (
	getTask       = wire.Service + ".GetTask"
	reportDataset = wire.Service + ".ReportDataset"
)

func (c *codec) ReadRequestHeader(r *rpc.Request) error {
	c.unanswered <- struct{}{}
	defer c.giveTurn()
	c.in.Limit = wire.MaxShortMessage
	if err := c.dec.Decode(r); err != nil {
		c.cancel()
		if !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
			c.log.WithError(err).WithField("peer", c.conn.RemoteAddr().String()).Warn("connection closed")
		}
		return io.EOF // anything else would be printed to the standard logger
	}
	c.request = *r
	c.connection.requested()
	switch r.ServiceMethod {
	case reportDataset, getTask:
		c.in.Limit = wire.MaxMessage
	}
	return nil
}

// ReadRequestBody decodes the argument of a call. A finished task comes with all its chunks, of which only the presence and
// the offsets are used: decoding less takes less memory. The task then has one chunk, with [taskqueue.OffsetsOf] as its offset.
func (c *codec) ReadRequestBody(body any) error {
	defer c.giveTurn()
	task, ok := body.(*taskqueue.Task)
	//guard:finished-chunks-not-decoded
	if !ok {
		return c.dec.Decode(body)
	}
	defer c.decoded()
	var light struct {
		Index  int
		Chunks []struct{ Index struct{ Offset int64 } }
		Token  taskqueue.Token
	}
	if err := c.dec.Decode(&light); err != nil {
		return fmt.Errorf("%w: %w", wire.ErrOtherFormat, err)
	}
	if err := c.fits(); err != nil {
		return err
	}
	*task = taskqueue.Task{Index: light.Index, Token: light.Token}
	if len(light.Chunks) > 0 {
		offsets := taskqueue.OffsetsOf(len(light.Chunks), func(i int) int64 { return light.Chunks[i].Index.Offset })
		task.Chunks = []taskqueue.Chunk{{Index: recordio.Index{Offset: int64(offsets)}}}
	}
	return nil
}

// fits refuses the first call of a client with another task format. The client sends the type that it receives tasks
// with. A task that it cannot decode or send back would return only by its timeout, repeatedly, until it is set aside.
func (c *codec) fits() error {
	//guard:task-format-compared
	if c.fitting {
		return nil
	}
	if err := c.in.Compare(new(taskqueue.Task), "Index", "Chunks"); err != nil {
		return fmt.Errorf("%w: %w", wire.ErrOtherFormat, err)
	}
	c.fitting = true
	return nil
}

func (c *codec) WriteResponse(r *rpc.Response, body any) error {
	defer func() {
		c.connection.answered()
		<-c.unanswered
	}()
	c.release(r.Seq)
	err := c.ctx.Err() // the connection has ended
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
		c.connection.undelivered(body)
		c.conn.Close()
	}
	return err
}

func (c *codec) Close() error { return c.conn.Close() }
