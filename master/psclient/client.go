// Package psclient implements the calls of a master to the parameter servers: it sends each committed synchronous step to
// every server, and takes checkpoints of all servers at one cut. A server ignores a step that it already has, so a call
// can always be repeated.
package psclient

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"trainmaster/internal/grpcdial"
	"trainmaster/master/pscontrol"
	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/taskqueue"
)

// Client reaches all parameter servers of a job. The zero value but Addrs is ready.
type Client struct {
	// Addrs waits until all parameter servers are registered and returns "ip:port" by index.
	Addrs func(ctx context.Context) ([]string, error)
	// Present returns the registered servers of the placement, "" for a server that is not registered; nil for a job
	// without parameter servers.
	Present func(ctx context.Context) ([]string, error)
	// Registered returns all registered servers, including servers without blocks; "" for an index that is not
	// registered.
	Registered func(ctx context.Context) ([]string, error)

	// JobID returns the id of the job in hexadecimal digits, "" if it is not known yet: servers of other jobs refuse the calls. May be nil.
	JobID func() string

	// During returns a context that ends with parent, with release, and as soon as the registry names another address for the
	// index, or none: calls to a server that hangs end then. May be nil.
	During func(parent context.Context, index int, addr string) (ctx context.Context, release context.CancelFunc)

	mu    sync.Mutex
	conns map[string]*conn
}

// conn is the connection to an address.
type conn struct {
	*grpc.ClientConn
	unwatch func() // its address
}

func (c *conn) close() {
	c.unwatch()
	c.Close()
}

// CommitStep returns once every server has taken the step, or ctx ends.
func (c *Client) CommitStep(ctx context.Context, step taskqueue.Step) error {
	addrs, err := c.Addrs(ctx)
	if err != nil {
		return fmt.Errorf("find the parameter servers: %w", err)
	}
	c.forget(addrs)
	req := &pb.CommitStepRequest{Version: step.Version, JobEpoch: step.Epoch, LearningRateScale: step.Scale} //guard:step-sent-with-its-learning-rate
	for _, by := range step.Contributors {
		req.Contributors = append(req.Contributors, &pb.StepContributor{Ordinal: uint32(by.Ordinal), Incarnation: by.Incarnation, Records: uint32(by.Records)})
	}
	return c.all(addrs, fmt.Sprintf("commit step %d on", step.Version), calling(ctx, pb.ParameterServerClient.CommitStep, req))
}

// StartAnother ends the errors about a missing server. A caller that has the flags can use StartAnotherWith and
// complete them.
const (
	StartAnother     = StartAnotherWith + "--endpoints ..."
	StartAnotherWith = "start one with: master pserver "
)

func missing(index, servers int) error {
	return fmt.Errorf("parameter server with index %d (of 0 to %d) %w: %s", index, servers-1, pscontrol.ErrServerMissing, StartAnother)
}

// whole returns the addresses of all servers if all are registered now.
func (c *Client) whole(ctx context.Context) ([]string, error) {
	addrs, err := c.Present(ctx)
	if err != nil {
		return nil, fmt.Errorf("find the parameter servers: %w", err)
	}
	if len(addrs) == 0 {
		return nil, pscontrol.ErrNothingToCut
	}
	for i, addr := range addrs {
		if addr == "" {
			return nil, missing(i, len(addrs))
		}
	}
	c.forget(addrs)
	return addrs, nil
}

const maxMessage = 64 << 20 // a placement of some million blocks

// all calls every server that has an address, and waits for all calls: a failed call does not stop the others.
func (c *Client) all(addrs []string, what string, call func(i int, server pb.ParameterServerClient) error) error {
	errs := make([]error, len(addrs))
	began := time.Now()
	var all sync.WaitGroup
	for i, addr := range addrs {
		if addr == "" {
			continue
		}
		all.Go(func() {
			conn, err := c.conn(i, addr)
			if err == nil {
				err = call(i, pb.NewParameterServerClient(conn))
			}
			switch {
			case err == nil:
			case errors.Is(err, context.DeadlineExceeded), status.Code(err) == codes.DeadlineExceeded:
				errs[i] = &silentError{fmt.Sprintf("%s parameter server %d (%s): no answer in %v: is it hung?", what, i, addr, time.Since(began).Round(100*time.Millisecond)), err}
			default:
				errs[i] = fmt.Errorf("%s parameter server %d (%s): %w", what, i, addr, err)
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// calling returns a call of [Client.all] whose reply says nothing.
func calling[Q, R any](ctx context.Context, method func(pb.ParameterServerClient, context.Context, Q, ...grpc.CallOption) (R, error), request Q) func(int, pb.ParameterServerClient) error {
	return func(_ int, server pb.ParameterServerClient) error {
		_, err := method(server, ctx, request)
		return err
	}
}

// brief asks every server that has an address to describe itself, without its model and placement. The reply of a server without
// an address, or with an error, is nil.
func (c *Client) brief(ctx context.Context, addrs []string) ([]*pb.DescribeReply, error) {
	replies := make([]*pb.DescribeReply, len(addrs))
	return replies, c.all(addrs, "describe", func(i int, server pb.ParameterServerClient) (err error) {
		//guard:stage-room-without-placement
		replies[i], err = server.Describe(ctx, &pb.DescribeRequest{Brief: true})
		return err
	})
}

// silentError is the error of a server that did not answer in time. Its text is for users.
type silentError struct {
	text string
	err  error
}

func (e *silentError) Error() string { return e.text }
func (e *silentError) Unwrap() error { return e.err }

func (c *Client) conn(index int, addr string) (*conn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if known := c.conns[addr]; known != nil {
		return known, nil
	}
	options := []grpc.DialOption{grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage))}
	if c.JobID != nil {
		options = append(options, grpcdial.OfJob(c.JobID))
	}
	dialed, err := grpcdial.Open(addr, options...)
	if err != nil {
		return nil, err
	}
	if c.conns == nil {
		c.conns = map[string]*conn{}
	}
	fresh := &conn{ClientConn: dialed, unwatch: func() {}}
	c.conns[addr] = fresh
	c.watch(fresh, index, addr)
	return fresh, nil
}

// watch closes a connection, with the calls on it, when its address no longer serves the index. An address that the registry
// does not name yet, or no more, is not watched: it was read by other means, perhaps later.
func (c *Client) watch(of *conn, index int, addr string) {
	if c.During == nil {
		return
	}
	serves, release := c.During(context.Background(), index, addr)
	if serves.Err() != nil {
		release()
		return
	}
	stop := context.AfterFunc(serves, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.conns[addr] == of {
			delete(c.conns, addr)
		}
		//guard:replaced-shard-closed
		of.Close()
	})
	of.unwatch = func() { stop(); release() }
}

// forget closes the connections to servers that are not at addrs any more.
func (c *Client) forget(addrs []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for addr, conn := range c.conns {
		if !slices.Contains(addrs, addr) {
			conn.close()
			delete(c.conns, addr)
		}
	}
}

// Close closes all connections.
func (c *Client) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.conns {
		conn.close()
	}
	clear(c.conns)
}
