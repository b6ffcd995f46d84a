// Package rendezvous is the client of the service Rendezvous for a member of a ring.
//
// # Use
//
// Run keeps the member in the ring, at each leader. Updates are level-triggered: Update returns the newest state, and a channel that closes when
// there is another one. Report, Leave and Close are repeated at the next leader until one has answered.
//
// # Failure
//
// Without a leader, the newest state stays: a member continues its generation. Run returns an error only if the member cannot take part. The error
// says what to change.
package rendezvous

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"trainmaster/internal/grpcdial"
	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/trainer"
)

// The periods of a member.
const (
	joinEvery   = 5 * time.Second
	retryPause  = 100 * time.Millisecond
	longPause   = 2 * time.Second
	callTimeout = 15 * time.Second
)

// Errors of members.
var (
	ErrReplaced = errors.New("another process has joined with the id of this member: give each member an id of its own")
	ErrClosed   = errors.New("the ring is closed")
	// ErrRefused is wrapped in the error for a member that the master does not accept.
	ErrRefused = errors.New("the master does not accept this member")
	// ErrOldGeneration is returned for a report about a generation that is not the current one.
	ErrOldGeneration = errors.New("another generation is current")
	// ErrValue is returned for an operation on a value that the master refuses.
	ErrValue = errors.New("the value was refused")
)

// Client is a member. The fields must not be changed after the first call.
type Client struct {
	Locate trainer.Locator
	Job    string         // "": whichever the master leads
	Member *pb.RingMember // without an instance: Run chooses one
	Log    *logrus.Entry
	// DialOptions are of the connection to a master. Default: no TLS.
	DialOptions []grpc.DialOption

	once    sync.Once
	leaving chan struct{} // closes when the member leaves
	leave   sync.Once
	runs    sync.WaitGroup
	mu      sync.Mutex
	update  *pb.RingUpdate
	changed chan struct{} // closes with the next update
	reply   *pb.RingJoinReply
	addr    string
	conn    *grpc.ClientConn
	users   int // of conn: Run, and calls in progress

	changing sync.Mutex // held by one change of a value
	sequence uint64     // of the changes
}

func (c *Client) prepare() {
	c.once.Do(func() {
		c.leaving = make(chan struct{})
		if c.Log == nil {
			c.Log = logrus.NewEntry(logrus.StandardLogger())
		}
		if c.Member.Instance == "" {
			c.Member.Instance = rand.Text()
		}
	})
}

// Update returns the newest state, and a channel that closes when there is another one. nil: none has arrived.
func (c *Client) Update() (u *pb.RingUpdate, changed <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.changed == nil {
		c.changed = make(chan struct{})
	}
	return c.update, c.changed
}

// set replaces the state.
func (c *Client) set(u *pb.RingUpdate) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.update = u
	//guard:ring-update-wakes-all
	if c.changed != nil {
		close(c.changed)
		c.changed = nil
	}
}

// JobOf returns the name and the id of the job; "": the member has not joined.
func (c *Client) JobOf() (name string, id []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.reply.GetJob(), c.reply.GetJobId()
}

// Horovod returns the address of the HTTP rendezvous of Horovod at the leader; "": there is none.
func (c *Client) Horovod() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.reply.GetHorovod()
}

// Run keeps the member in the ring until ctx ends, the member leaves, or the ring is closed. Only the end of ctx is an error. Run returns ErrReplaced if
// another process has its id, and io.EOF or trainer.ErrJobFailed if the job has ended without a master.
func (c *Client) Run(ctx context.Context) error {
	c.prepare()
	c.runs.Add(1)
	defer c.runs.Done()
	defer c.use()()
	outer := ctx
	ctx, cancel := context.WithCancel(outer)
	defer cancel()
	go func() {
		select {
		case <-c.leaving:
			cancel()
		case <-ctx.Done():
		}
	}()
	pause := retryPause
	for said := ""; ; {
		began := time.Now()
		err := c.attend(ctx)
		switch {
		case outer.Err() != nil:
			return context.Cause(outer)
		case ctx.Err() != nil, err == nil, errors.Is(err, ErrClosed):
			return nil
		case final(err):
			return err
		}
		if time.Since(began) > longPause {
			pause = retryPause
		}
		if text := err.Error(); text != said && pause > 4*retryPause { // a failover takes less
			c.Log.WithError(err).Warn("no connection to the ring, retrying")
			said = text
		}
		sleep(ctx, pause)
		pause = min(2*pause, longPause)
	}
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// final reports whether another attempt is of no use.
func final(err error) bool {
	return errors.Is(err, ErrValue) || errors.Is(err, ErrReplaced) || errors.Is(err, ErrRefused) || errors.Is(err, io.EOF) || errors.Is(err, trainer.ErrJobFailed)
}

// service returns the client of the current leader.
func (c *Client) service(ctx context.Context) (client pb.RendezvousClient, moved <-chan struct{}, err error) {
	addr, moved, err := c.Locate.Leader(ctx)
	if err != nil {
		return nil, nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn == nil || c.addr != addr {
		if c.conn != nil {
			_ = c.conn.Close() // it is only ever closed already
		}
		c.conn, err = grpcdial.OpenStatic(addr, append([]grpc.DialOption{grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}),
			grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: retryPause, Multiplier: 1.6, Jitter: 0.2, MaxDelay: longPause}, MinConnectTimeout: longPause})}, c.DialOptions...)...)
		if err != nil {
			c.conn = nil
			return nil, nil, fmt.Errorf("address of the master: %w", err)
		}
		c.addr = addr
	}
	return pb.NewRendezvousClient(c.conn), moved, nil
}

// use keeps the connection open until release.
func (c *Client) use() (release func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.users++
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		//guard:call-keeps-connection
		if c.users--; c.users == 0 && c.conn != nil {
			_ = c.conn.Close() // it is only ever closed already
			c.conn = nil
		}
	}
}

// attend takes part at one leader. It returns nil when the ring is closed.
func (c *Client) attend(ctx context.Context) error {
	client, moved, err := c.service(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	var joins sync.WaitGroup
	defer joins.Wait()
	defer cancel()
	join := func() error {
		bounded, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		reply, err := client.Join(bounded, &pb.RingJoinRequest{Job: c.Job, Member: c.Member})
		if err != nil {
			return explain(err)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.reply = reply
		return nil
	}
	// The answer of a closed ring is in the stream, with the reason.
	if err := join(); err != nil && !errors.Is(err, ErrClosed) {
		return err
	}
	stream, err := client.Watch(ctx, &pb.RingWatchRequest{Job: c.Job, Id: c.Member.Id, Instance: c.Member.Instance})
	if err != nil {
		return explain(err)
	}
	joins.Go(func() {
		tick := time.NewTicker(joinEvery)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-moved:
				cancel()
				return
			case <-tick.C:
				_ = join() // the stream reports a leader that has gone
			}
		}
	})
	for {
		u, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return errors.New("the master has ended the stream")
		}
		if err != nil {
			return explain(err)
		}
		c.set(u)
		if u.State == pb.RingState_RING_STATE_CLOSED {
			return nil
		}
	}
}

// call repeats a call until a leader has answered.
func (c *Client) call(ctx context.Context, call func(context.Context, pb.RendezvousClient) error) error {
	c.prepare()
	defer c.use()()
	for {
		client, _, err := c.service(ctx)
		if err == nil {
			bounded, cancel := context.WithTimeout(ctx, callTimeout)
			err = explain(call(bounded, client))
			cancel()
		}
		switch {
		case err == nil, errors.Is(err, ErrOldGeneration), errors.Is(err, ErrClosed), final(err):
			return err
		case ctx.Err() != nil:
			return context.Cause(ctx)
		}
		sleep(ctx, retryPause)
	}
}

// Report says how the work of a generation goes. It returns when the next leader also knows it, or ErrOldGeneration if another generation is
// current. peer is the member that cannot be reached, with RING_OUTCOME_PEER_FAILED.
func (c *Client) Report(ctx context.Context, generation uint64, o pb.RingOutcome, peer, reason string) error {
	return c.call(ctx, func(ctx context.Context, client pb.RendezvousClient) error {
		_, err := client.Report(ctx, &pb.RingReportRequest{
			Job: c.Job, Id: c.Member.Id, Instance: c.Member.Instance, Generation: generation, Outcome: o, Peer: peer, Reason: reason,
		})
		return err
	})
}

// Leave ends Run and leaves the ring.
func (c *Client) Leave(ctx context.Context, reason string) error {
	c.prepare()
	c.leave.Do(func() { close(c.leaving) })
	c.runs.Wait()
	return c.call(ctx, func(ctx context.Context, client pb.RendezvousClient) error {
		_, err := client.Leave(ctx, &pb.RingLeaveRequest{Job: c.Job, Id: c.Member.Id, Instance: c.Member.Instance, Reason: reason})
		return err
	})
}

// Close ends the rendezvous for all members.
func (c *Client) Close(ctx context.Context, reason string) error {
	err := c.call(ctx, func(ctx context.Context, client pb.RendezvousClient) error {
		_, err := client.Close(ctx, &pb.RingCloseRequest{Job: c.Job, Reason: reason})
		//guard:closed-ring-needs-no-answer
		if u, _ := c.Update(); err != nil && u.GetState() == pb.RingState_RING_STATE_CLOSED {
			return nil // the master ends when all members know it
		}
		return err
	})
	if errors.Is(err, io.EOF) { // the job has ended
		return nil
	}
	return err
}

// maxStoreRequest is below the limit of a message of the master.
const maxStoreRequest = 60 << 10

const (
	storeWait      = 5 * time.Second // of one request for values, below callTimeout
	keysOfARequest = 100             // their values fit a message
)

// Values waits until all keys of a generation have values, and returns them. Without all of them, it returns nil after the wait.
func (c *Client) Values(ctx context.Context, generation uint64, keys []string, wait time.Duration) (values [][]byte, err error) {
	end := time.Now().Add(wait)
	//guard:values-fit-a-message
	for some := range slices.Chunk(keys, keysOfARequest) {
		found, err := c.valuesBefore(ctx, generation, some, end)
		if found == nil || err != nil {
			return nil, err
		}
		values = append(values, found...)
	}
	return values, nil
}

// valuesBefore does the same with as many keys as one request can have.
func (c *Client) valuesBefore(ctx context.Context, generation uint64, keys []string, end time.Time) (values [][]byte, err error) {
	for {
		part := max(0, min(storeWait, time.Until(end)))
		reply, err := c.store(ctx, &pb.RingStoreRequest{Generation: generation, Operation: &pb.RingStoreRequest_Get{
			Get: &pb.RingGet{Keys: keys, WaitMilliseconds: uint32(part.Milliseconds())},
		}})
		switch {
		case err != nil:
			return nil, err
		case reply.GetFound():
			return reply.GetValues(), nil
		case !time.Now().Before(end):
			return nil, nil
		}
	}
}

// Change changes a value of a generation. The operation of r is a change. A repetition after a lost reply has no second effect.
func (c *Client) Change(ctx context.Context, r *pb.RingStoreRequest) (*pb.RingStoreReply, error) {
	c.changing.Lock()
	defer c.changing.Unlock()
	c.sequence++
	r.Sequence = c.sequence
	return c.store(ctx, r)
}

func (c *Client) store(ctx context.Context, r *pb.RingStoreRequest) (reply *pb.RingStoreReply, err error) {
	c.prepare()
	if n := proto.Size(r); n > maxStoreRequest {
		return nil, fmt.Errorf("%w: expected a request of at most %d bytes, found %d: a value has at most 24 KiB", ErrValue, maxStoreRequest, n)
	}
	r.Job, r.Id, r.Instance = c.Job, c.Member.Id, c.Member.Instance
	err = c.call(ctx, func(ctx context.Context, client pb.RendezvousClient) (err error) {
		reply, err = client.Store(ctx, r)
		return err
	})
	return reply, err
}

// explain returns the error of a call, as one of the errors of this package where that is possible.
func explain(err error) error {
	switch reasonOf(err) {
	case "REPLACED":
		return as(ErrReplaced, err)
	case "RING_CLOSED":
		return as(ErrClosed, err)
	case "OLD_GENERATION":
		return as(ErrOldGeneration, err)
	case "BAD_VALUE", "TOO_MANY_VALUES":
		return as(ErrValue, err)
	case "NO_RING":
		return fmt.Errorf("%w: %s: start the master again with it", ErrRefused, status.Convert(err).Message())
	case "OTHER_JOB":
		return fmt.Errorf("%w: %s: give the --job or the --addr of the job of this member", ErrRefused, status.Convert(err).Message())
	}
	switch text := status.Convert(err).Message(); {
	case status.Code(err) == codes.InvalidArgument:
		return fmt.Errorf("%w: %s: correct the flags of this member", ErrRefused, text)
	case status.Code(err) == codes.Unimplemented && strings.Contains(text, "unknown "): // not the 404 of a proxy
		return fmt.Errorf("%w: %s: expected a master with the service Rendezvous: check the address, and start a master of this version", ErrRefused, text)
	}
	return err
}

// as wraps an error of this package, whose text the error of the call can begin with.
func as(err, call error) error {
	return fmt.Errorf("%w: %s", err, strings.TrimPrefix(status.Convert(call).Message(), err.Error()+": "))
}

func reasonOf(err error) string {
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok {
			return info.Reason
		}
	}
	return ""
}
