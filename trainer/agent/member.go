package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/trainer/rendezvous"
)

// MemberConfig configures an agent that takes part in the ring of a job, and takes no tasks.
type MemberConfig struct {
	FD      int    // of the main connection
	Parent  int    // process id of the process that starts programs
	Program string // version of this program
	Member  *rendezvous.Client
	Log     *logrus.Entry
}

// leaveTimeout is the time to leave the ring without a leader. After it, the master finds the end of the connection.
const leaveTimeout = 5 * time.Second

// member is the state of a running agent of a member.
type member struct {
	config MemberConfig
	ctx    context.Context // ends with RunMember
	runs   context.Context // ends when the member takes no part any more; its cause says why

	mu     sync.Mutex
	number uint64 // of the newest state
	newest *pb.RingUpdate
}

// memberRequest is a request of any operation of a member.
type memberRequest struct {
	ID   uint64   `json:"id"`
	Op   string   `json:"op"`
	Wait *float64 `json:"wait"`

	Version    int      `json:"version"` // hello
	After      uint64   `json:"after"`   // ring
	Generation uint64   `json:"generation"`
	Reason     string   `json:"reason"`
	Keys       []string `json:"keys"`
	Key        string   `json:"key"`
	Value      []byte   `json:"value"`
	Expected   []byte   `json:"expected"`
	Amount     int64    `json:"amount"`
}

type memberHello struct {
	Version int    `json:"version"`
	Master  string `json:"master"`
	Member  string `json:"member"`
	Job     string `json:"job"`
}

type ringReply struct {
	Update     uint64       `json:"update"`
	State      string       `json:"state"`
	Reason     string       `json:"reason"`
	Generation uint64       `json:"generation"`
	Ended      bool         `json:"ended"`
	Rank       int          `json:"rank"`
	Members    []ringMember `json:"members"`
	Min        uint32       `json:"min"`
	Max        uint32       `json:"max"`
}

type ringMember struct {
	ID   string `json:"id"`
	Host string `json:"host"`
}

type valuesReply struct {
	Found  bool     `json:"found"`
	Values [][]byte `json:"values"`
	Number int64    `json:"number"`
}

// RunMember serves a process that starts the programs of a member, until it closes its connection or dies. Then the member leaves.
func RunMember(ctx context.Context, config MemberConfig) error {
	died, err := watchParent(config.Parent)
	if err != nil {
		return err
	}
	conn, err := connectionOf(config.FD)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	m := &member{config: config, ctx: ctx}
	var ran context.CancelCauseFunc
	m.runs, ran = context.WithCancelCause(ctx)
	var owned sync.WaitGroup
	defer func() {
		cancel()
		conn.Close()
		owned.Wait()
	}()
	owned.Go(func() {
		err := config.Member.Run(ctx)
		if err == nil {
			err = m.closed()
		}
		ran(err)
	})
	ended := make(chan error, 1)
	owned.Go(func() { ended <- m.serve(conn) })
	select {
	case <-died:
	case err = <-ended:
	}
	select {
	case <-m.runs.Done(): // the ring is closed, and its master may have ended
		return protocolError(err)
	default:
	}
	leave, done := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
	defer done()
	if err := config.Member.Leave(leave, "its process has ended"); err != nil && !errors.Is(err, rendezvous.ErrClosed) && !errors.Is(err, io.EOF) {
		config.Log.WithError(err).Debug("ring not left: the master finds the end of the connection")
	}
	return protocolError(err)
}

// serve serves the main connection until it ends.
func (m *member) serve(conn *net.UnixConn) error {
	return serve(m.ctx, conn, m.config.Log, func(body []byte) (incoming, error) {
		r := &memberRequest{}
		if err := json.Unmarshal(body, r); err != nil {
			return incoming{}, err
		}
		if r.ID == 0 {
			return incoming{}, errors.New("id: expected a number above 0, found 0")
		}
		return incoming{id: r.ID, op: r.Op, work: func(ctx context.Context) (reply, error) {
			content, err := m.answer(ctx, r)
			return reply{content: content}, err
		}}, nil
	})
}

// answer returns the content of a reply.
func (m *member) answer(connected context.Context, r *memberRequest) (any, error) {
	if r.Op == "ring" {
		return m.ring(connected, r)
	}
	// A master that has ended after the end of the ring does not answer.
	//guard:closed-ring-ends-requests
	ctx, cancel := context.WithCancel(m.runs)
	defer cancel()
	defer context.AfterFunc(connected, cancel)()
	limit, release := limited(ctx, r.Wait)
	defer release()
	change := &pb.RingStoreRequest{Generation: r.Generation}
	switch r.Op {
	case "hello":
		return m.hello(limit, r)
	case "ring_failed":
		err := m.config.Member.Report(limit, r.Generation, pb.RingOutcome_RING_OUTCOME_FAILED, "", r.Reason)
		if errors.Is(err, rendezvous.ErrOldGeneration) {
			err = nil // another generation is current already
		}
		return nil, err
	case "ring_close":
		err := m.config.Member.Close(limit, r.Reason)
		if errors.Is(err, rendezvous.ErrClosed) {
			err = nil
		}
		return nil, err
	case "value_get":
		return m.values(ctx, r)
	case "value_set":
		change.Operation = &pb.RingStoreRequest_Set{Set: &pb.RingSet{Key: r.Key, Value: r.Value}}
	case "value_add":
		change.Operation = &pb.RingStoreRequest_Add{Add: &pb.RingAdd{Key: r.Key, Amount: r.Amount}}
	case "value_compare_set":
		change.Operation = &pb.RingStoreRequest_CompareSet{CompareSet: &pb.RingCompareSet{Key: r.Key, Expected: r.Expected, Desired: r.Value}}
	case "value_delete":
		change.Operation = &pb.RingStoreRequest_Delete{Delete: &pb.RingDelete{Key: r.Key}}
	default:
		return nil, invalidf("op: expected an operation of a member in version %d of the protocol, found %q: use an SDK and a master of the same release", Version, r.Op)
	}
	c, err := m.config.Member.Change(limit, change)
	return valuesReply{Found: c.GetFound(), Values: orEmpty(c.GetValues()), Number: c.GetNumber()}, err
}

// valueGrace is the time for the answer of a master after the wait for values.
const valueGrace = 2 * time.Second

// values waits for values. After r.Wait, with or without a master, it answers that they were not found.
func (m *member) values(ctx context.Context, r *memberRequest) (any, error) {
	wait := 0.0
	if r.Wait != nil {
		wait = *r.Wait
	}
	//guard:values-reply-without-a-master
	limit, release := context.WithTimeout(ctx, seconds(wait)+valueGrace)
	defer release()
	values, err := m.config.Member.Values(limit, r.Generation, r.Keys, seconds(wait))
	if limit.Err() != nil && ctx.Err() == nil {
		err = nil
	}
	return valuesReply{Found: values != nil, Values: orEmpty(values)}, err
}

func orEmpty(values [][]byte) [][]byte {
	if values == nil {
		return [][]byte{}
	}
	return values
}

// hello waits until the member has joined.
func (m *member) hello(ctx context.Context, r *memberRequest) (any, error) {
	if r.Version != Version {
		return nil, invalidf("version: expected %d, found %d: use an SDK and a master of the same release", Version, r.Version)
	}
	if _, _, err := m.await(ctx, 0); err != nil {
		return nil, err
	}
	job, _ := m.config.Member.JobOf()
	return memberHello{Version: Version, Master: m.config.Program, Member: m.config.Member.Member.GetId(), Job: job}, nil
}

// await waits for a state with a number above after. The number counts the states of this agent.
func (m *member) await(ctx context.Context, after uint64) (u *pb.RingUpdate, number uint64, err error) {
	for {
		u, number, changed := m.state()
		if u != nil && number > after {
			return u, number, nil
		}
		select {
		case <-changed:
		case <-m.runs.Done():
			if u, number, _ := m.state(); u != nil && number > after {
				return u, number, nil
			}
			return nil, 0, context.Cause(m.runs)
		case <-ctx.Done():
			return nil, number, context.Cause(ctx)
		}
	}
}

// state returns the newest state with its number, and a channel that closes when there is another one.
func (m *member) state() (u *pb.RingUpdate, number uint64, changed <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if u, changed = m.config.Member.Update(); u != m.newest {
		m.newest = u
		m.number++
	}
	return u, m.number, changed
}

// closed returns the end of the ring.
func (m *member) closed() error {
	if u, _ := m.config.Member.Update(); u.GetReason() != "" {
		return fmt.Errorf("%w: %s", rendezvous.ErrClosed, u.GetReason())
	}
	return rendezvous.ErrClosed
}

var memberStates = map[pb.RingState]string{
	pb.RingState_RING_STATE_WAITING: "waiting", pb.RingState_RING_STATE_MEMBER: "member", pb.RingState_RING_STATE_PARKED: "parked", pb.RingState_RING_STATE_CLOSED: "closed",
}

// ring returns the newest state when its number is above r.After; without a newer one, the same state after r.Wait.
func (m *member) ring(ctx context.Context, r *memberRequest) (any, error) {
	wait := defaultWait
	if r.Wait != nil {
		wait = *r.Wait
	}
	limit, release := limited(ctx, &wait)
	defer release()
	u, number, err := m.await(limit, r.After)
	if errors.Is(err, errTimeout) {
		if u, number, _ = m.state(); u != nil {
			err = nil
		}
	}
	if err != nil {
		return nil, err
	}
	g := u.GetGeneration()
	self := m.config.Member.Member
	out := ringReply{
		Update: number, State: memberStates[u.GetState()], Reason: u.GetReason(), Generation: g.GetNumber(), Ended: g.GetEnded(), Members: []ringMember{},
		Min: u.GetMin(), Max: u.GetMax(),
	}
	for _, one := range g.GetMembers() {
		out.Members = append(out.Members, ringMember{one.GetId(), one.GetHost()})
	}
	out.Rank = slices.IndexFunc(g.GetMembers(), func(one *pb.RingMember) bool {
		return one.GetId() == self.GetId() && one.GetInstance() == self.GetInstance()
	})
	return out, nil
}
