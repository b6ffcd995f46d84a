package trainer

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/rpc"
	"strconv"
	"strings"
	"time"

	"trainmaster/master/netrpc/wire"
)

// overNetRPC is a net/rpc connection.
type overNetRPC struct{ client *rpc.Client }

func (o *overNetRPC) start(_ context.Context, method string, request, reply any) <-chan error {
	outcome := make(chan error, 1)
	if beat, ok := request.(beatRequest); ok {
		request, reply = beat.HeartbeatRequest, &reply.(*beatReply).Answer //nolint:forcetypeassert // the caller pairs them
	}
	go func() {
		call := <-o.client.Go(wire.Service+"."+method, request, reply, make(chan *rpc.Call, 1)).Done
		outcome <- wire.Error(call.Error)
	}()
	return outcome
}

func (o *overNetRPC) close() { _ = o.client.Close() }

// dialNetRPC is rpc.DialHTTP with a bound on its time.
func dialNetRPC(ctx context.Context, addr string, patience time.Duration) (transport, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		conn.Close()
		return nil, err
	}
	if _, err := io.WriteString(conn, "CONNECT "+rpc.DefaultRPCPath+" HTTP/1.0\n\n"); err != nil {
		conn.Close()
		return nil, err
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: http.MethodConnect})
	switch {
	case err == nil && resp.StatusCode != http.StatusOK:
		err = fmt.Errorf("%w at %s, found an answer %q%s", errNoMaster, addr, resp.Status, firstLine(resp.Body))
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF): // also from a master that stops
		err = fmt.Errorf("expected a master at %s, found that the connection was closed without an answer: %w", addr, err)
	case err != nil && strings.Contains(err.Error(), "malformed HTTP"):
		err = fmt.Errorf("%w at %s, found a program of another protocol: %w", errNoMaster, addr, err)
	}
	if err == nil {
		err = conn.SetDeadline(time.Time{})
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return &overNetRPC{rpc.NewClient(impatient{conn, patience})}, nil
}

// firstLine is the first line of an answer, after a colon.
func firstLine(body io.Reader) string {
	const most = 200
	text, _ := io.ReadAll(io.LimitReader(body, most)) // the bytes before an error are enough
	line, _, _ := strings.Cut(strings.TrimSpace(string(text)), "\n")
	if line == "" {
		return ""
	}
	return ": " + strconv.QuoteToGraphic(line)
}

// impatient is a connection with a write deadline. net/rpc holds a lock of the connection during a write, and a write to a frozen
// machine blocks when the window is full.
type impatient struct {
	net.Conn
	patience time.Duration // for one write
}

func (c impatient) Write(b []byte) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(c.patience)); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}
