package etcdstore

import (
	"context"
	"fmt"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"trainmaster/taskqueue"
)

// full says that etcd has reached its quota and refused what, and how an administrator frees it.
func (s *Store) full(what string) error {
	revision := "REVISION"
	if last := s.revision.Load(); last > 0 {
		revision = fmt.Sprint(last)
	}
	return fmt.Errorf("%s: %w: %w: found %s at its quota: free it with: export ETCDCTL_ENDPOINTS=%s; etcdctl compact %s && etcdctl defrag && etcdctl alarm disarm (or raise --quota-backend-bytes)",
		what, taskqueue.ErrStoreFull, errNoSpace, strings.Join(s.endpoints, ", "), strings.Join(s.endpoints, ","), revision)
}

// CheckSpace returns an error that is taskqueue.ErrStoreFull if etcd refuses writes because it
// has reached its quota; another error if etcd does not answer.
func (s *Store) CheckSpace(ctx context.Context) error {
	alarms, err := s.client.AlarmList(ctx)
	if err != nil {
		return fmt.Errorf("list the alarms of etcd: %w", err)
	}
	for _, alarm := range alarms.Alarms {
		if alarm.Alarm == pb.AlarmType_NOSPACE {
			s.saw(alarms.Header)
			return s.full("write")
		}
	}
	return nil
}

// saw notes the revision of an answer.
func (s *Store) saw(header *pb.ResponseHeader) {
	for now := header.GetRevision(); ; {
		if last := s.revision.Load(); last >= now || s.revision.CompareAndSwap(last, now) {
			return
		}
	}
}
