package load

import (
	"bufio"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/rpc"
	"reflect"

	"trainmaster/master/netrpc/wire"
)

// connection is a net/rpc client with one call at a time. It sends and reads the same bytes as rpc.Client. It has no goroutine,
// which would take processor time from the master.
type connection struct {
	addr string
	conn net.Conn
	w    *bufio.Writer
	enc  *gob.Encoder
	dec  *gob.Decoder
	seq  uint64
	free func() bool // of ctx
}

// dial connects as rpc.DialHTTP does. The end of ctx cuts the connection.
func (c *connection) dial(ctx context.Context) (err error) {
	if c.conn, err = (&net.Dialer{}).DialContext(ctx, "tcp", c.addr); err != nil {
		return err
	}
	c.free = context.AfterFunc(ctx, func() { _ = c.conn.Close() })
	if _, err := fmt.Fprintf(c.conn, "CONNECT %s HTTP/1.0\n\n", rpc.DefaultRPCPath); err != nil {
		return err
	}
	r := bufio.NewReader(c.conn)
	answer, err := http.ReadResponse(r, &http.Request{Method: http.MethodConnect})
	if err != nil {
		return fmt.Errorf("connect to %s: %w", c.addr, err)
	}
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("connect to %s: %s", c.addr, answer.Status)
	}
	c.w = bufio.NewWriter(c.conn)
	c.enc, c.dec = gob.NewEncoder(c.w), gob.NewDecoder(r)
	return nil
}

// call sends a request and waits for its answer.
func (c *connection) call(method string, args, reply any) error {
	c.seq++
	err := c.enc.Encode(&rpc.Request{ServiceMethod: wire.Service + "." + method, Seq: c.seq})
	if err == nil {
		err = c.enc.Encode(args)
	}
	if err == nil {
		err = c.w.Flush()
	}
	var head rpc.Response
	if err == nil {
		err = c.dec.Decode(&head)
	}
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", method, err)
	case head.Seq != c.seq:
		return fmt.Errorf("%s: expected the answer to request %d, found that to %d", method, c.seq, head.Seq)
	case head.Error != "":
		return errors.Join(wire.Error(rpc.ServerError(head.Error)), c.dec.DecodeValue(reflect.Value{}))
	}
	return c.dec.Decode(reply)
}

func (c *connection) close() error {
	if c.conn == nil || !c.free() {
		return nil // never opened, or cut
	}
	return c.conn.Close()
}
