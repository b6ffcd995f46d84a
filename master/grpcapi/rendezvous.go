package grpcapi

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/proto"

	"trainmaster/master"
	"trainmaster/master/rendezvous"
	"trainmaster/master/ring"
	pb "trainmaster/proto/trainmaster/v1"
)

// rendezvousService is the service Rendezvous.
type rendezvousService struct {
	pb.UnimplementedRendezvousServer
	master *master.Master
}

// ring returns the ring of the job that a request names.
func (s *rendezvousService) ring(job string) (*ring.Ring, error) {
	if err := checkJob(s.master, job); err != nil {
		return nil, err
	}
	return s.master.Ring()
}

// Join adds a member.
func (s *rendezvousService) Join(ctx context.Context, req *pb.RingJoinRequest) (*pb.RingJoinReply, error) {
	r, err := s.ring(req.GetJob())
	if err != nil {
		return nil, err
	}
	m := req.GetMember()
	member := rendezvous.Member{ID: m.GetId(), Instance: m.GetInstance(), Host: cmp.Or(m.GetHost(), hostOf(ctx)), Processes: int(m.GetProcesses())}
	for _, p := range m.GetPorts() {
		if member.Ports = append(member.Ports, int(p)); len(member.Ports) > rendezvous.MaxPorts {
			break // the ring refuses the member
		}
	}
	id, err := r.Join(member)
	if err != nil {
		return nil, err
	}
	return &pb.RingJoinReply{Job: s.master.Job(), JobId: id[:], Horovod: r.Horovod()}, nil
}

// hostOf returns the address of the connection of a call; "": it has none.
func hostOf(ctx context.Context) string {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return ""
	}
	host, _, err := net.SplitHostPort(p.Addr.String())
	if err != nil {
		return ""
	}
	return host
}

// Watch sends the state of the ring and its changes.
func (s *rendezvousService) Watch(req *pb.RingWatchRequest, stream pb.Rendezvous_WatchServer) error {
	r, err := s.ring(req.GetJob())
	if err != nil {
		return err
	}
	w, err := r.Watch(rendezvous.MemberKey{ID: req.GetId(), Instance: req.GetInstance()})
	if err != nil {
		return err
	}
	defer w.End()
	var last *pb.RingUpdate
	for {
		u, changed, err := w.Update()
		if err != nil {
			return err
		}
		if next := ringUpdate(u, req.GetId() == ""); !proto.Equal(next, last) {
			if err := stream.Send(next); err != nil {
				return err
			}
			last = next
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return context.Cause(stream.Context())
		}
	}
}

var ringStates = map[rendezvous.Phase]pb.RingState{
	rendezvous.Waiting: pb.RingState_RING_STATE_WAITING, rendezvous.Running: pb.RingState_RING_STATE_MEMBER,
	rendezvous.Parked: pb.RingState_RING_STATE_PARKED, rendezvous.Closed: pb.RingState_RING_STATE_CLOSED,
}

func ringUpdate(u ring.Update, observes bool) *pb.RingUpdate {
	out := &pb.RingUpdate{
		State: ringStates[u.Phase], Reason: u.Reason, Waiting: ringMembers(u.Waiting),
		Min: uint32(u.Bounds.Min), Max: uint32(u.Bounds.Max), Closed: u.Ring.Closed != "",
	}
	if observes {
		out.State, out.Reason = pb.RingState_RING_STATE_OBSERVER, cmp.Or(u.Ring.Closed, u.Reason)
	}
	if g := u.Ring.Generation; g.Number > 0 {
		out.Generation = &pb.RingGeneration{
			Number: g.Number, Members: ringMembers(g.Members), Coordinator: g.Coordinator(), Reason: g.Reason, Failed: g.Failed, Ended: g.Ended != "",
		}
	}
	return out
}

func ringMembers(list []rendezvous.Member) (out []*pb.RingMember) {
	for _, m := range list {
		member := &pb.RingMember{Id: m.ID, Instance: m.Instance, Host: m.Host, Processes: uint32(m.Processes), Completed: m.Completed}
		for _, p := range m.Ports {
			member.Ports = append(member.Ports, uint32(p))
		}
		out = append(out, member)
	}
	return out
}

var ringOutcomes = map[pb.RingOutcome]ring.Outcome{
	pb.RingOutcome_RING_OUTCOME_FAILED: ring.Failed, pb.RingOutcome_RING_OUTCOME_PEER_FAILED: ring.PeerFailed, pb.RingOutcome_RING_OUTCOME_COMPLETED: ring.Completed,
}

// Report notes how the work of a member goes.
func (s *rendezvousService) Report(ctx context.Context, req *pb.RingReportRequest) (*pb.RingReportReply, error) {
	r, err := s.ring(req.GetJob())
	if err != nil {
		return nil, err
	}
	outcome, ok := ringOutcomes[req.GetOutcome()]
	if !ok {
		return nil, fmt.Errorf("%w: outcome: expected one of RingOutcome, found %d", ring.ErrBad, req.GetOutcome())
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	key := rendezvous.MemberKey{ID: req.GetId(), Instance: req.GetInstance()}
	return &pb.RingReportReply{}, r.Report(ctx, key, req.GetGeneration(), outcome, req.GetPeer(), req.GetReason())
}

// Leave removes a member.
func (s *rendezvousService) Leave(ctx context.Context, req *pb.RingLeaveRequest) (*pb.RingLeaveReply, error) {
	r, err := s.ring(req.GetJob())
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	return &pb.RingLeaveReply{}, r.Leave(ctx, rendezvous.MemberKey{ID: req.GetId(), Instance: req.GetInstance()}, req.GetReason())
}

// Close ends the rendezvous.
func (s *rendezvousService) Close(ctx context.Context, req *pb.RingCloseRequest) (*pb.RingCloseReply, error) {
	r, err := s.ring(req.GetJob())
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	return &pb.RingCloseReply{}, r.Close(ctx, req.GetReason())
}

// Store reads or changes a value of the members.
func (s *rendezvousService) Store(ctx context.Context, req *pb.RingStoreRequest) (*pb.RingStoreReply, error) {
	r, err := s.ring(req.GetJob())
	if err != nil {
		return nil, err
	}
	member := rendezvous.MemberKey{ID: req.GetId(), Instance: req.GetInstance()}
	if get := req.GetGet(); get != nil {
		values, err := r.Values(ctx, member, req.GetGeneration(), get.GetKeys(), time.Duration(get.GetWaitMilliseconds())*time.Millisecond)
		return &pb.RingStoreReply{Found: values != nil, Values: values}, err
	}
	key, op := changeOf(req)
	if op == nil {
		return nil, fmt.Errorf("%w: operation: expected one of get, set, add, compare_set and delete, found none", ring.ErrBad)
	}
	c, err := r.Change(ctx, member, req.GetGeneration(), req.GetSequence(), key, op)
	reply := &pb.RingStoreReply{Found: c.Found, Number: c.Number}
	if req.GetCompareSet() != nil {
		reply.Values = [][]byte{c.Content}
	}
	return reply, err
}

// changeOf returns the change of a request; nil: it has none.
func changeOf(req *pb.RingStoreRequest) (key string, op rendezvous.Operation) {
	switch o := req.GetOperation().(type) {
	case *pb.RingStoreRequest_Set:
		return o.Set.GetKey(), rendezvous.SetValue{Content: o.Set.GetValue()}
	case *pb.RingStoreRequest_Add:
		return o.Add.GetKey(), rendezvous.AddValue{Amount: o.Add.GetAmount()}
	case *pb.RingStoreRequest_CompareSet:
		return o.CompareSet.GetKey(), rendezvous.CompareSetValue{Expected: o.CompareSet.GetExpected(), Desired: o.CompareSet.GetDesired()}
	case *pb.RingStoreRequest_Delete:
		return o.Delete.GetKey(), rendezvous.DeleteValue{}
	}
	return "", nil
}
