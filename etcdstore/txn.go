package etcdstore

import (
	"context"
	"errors"
	"fmt"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"

	"trainmaster/etcdstore/fence"
	"trainmaster/taskqueue"
)

var (
	// errNoSpace is etcd's answer to a transaction that crosses the quota (and
	// was applied) or comes after (and was not).
	errNoSpace = errors.New("etcd: database space exceeded")

	errLeaseGone = errors.New("etcd: the lease is gone")
)

// txn sends a transaction once and returns its outcome: see the package doc. A failed compare is no error here.
func (s *Store) txn(ctx context.Context, req *pb.TxnRequest) (*pb.TxnResponse, error) {
	answer, sent, err := s.send(ctx, req)
	if err != nil && staleToken(err) {
		answer, sent, err = s.send(ctx, req)
	}
	if err != nil {
		return nil, outcome(err, sent)
	}
	s.saw(answer.Header)
	return answer, nil
}

// send reports in sent whether the request was handed to a connection: only
// then can etcd have seen it.
func (s *Store) send(ctx context.Context, req *pb.TxnRequest) (answer *pb.TxnResponse, sent bool, err error) {
	var to peer.Peer // filled once the request has a stream on a connection
	opts := append(s.callOpts[:len(s.callOpts):len(s.callOpts)], grpc.Peer(&to))
	answer, err = s.kv.Txn(ctx, req, opts...)
	return answer, to.Addr != nil, err
}

// outcome is the table of the package doc for a transaction that got no
// regular answer.
func outcome(err error, sent bool) error {
	cause := rpctypes.Error(err)
	switch {
	case !sent:
		return fmt.Errorf("not sent to etcd, nothing written: %w", cause)
	case errors.Is(cause, rpctypes.ErrNoSpace):
		return errNoSpace
	case errors.Is(cause, rpctypes.ErrLeaseNotFound):
		return errLeaseGone
	}
	switch codeOf(cause) {
	case codes.InvalidArgument, codes.FailedPrecondition, codes.OutOfRange, codes.PermissionDenied,
		codes.Unauthenticated, codes.Unimplemented, codes.ResourceExhausted:
		return fmt.Errorf("etcd refused the transaction, nothing written: %w", cause)
	}
	//guard:unknown-outcome-error
	return fmt.Errorf("%w: %w", taskqueue.ErrUnknownOutcome, cause)
}

// What transactions are made of.
var (
	createdAt  = fence.CreatedAt
	modifiedAt = fence.ModifiedAt
	opPut      = fence.Put
	opGet      = fence.Get
)
