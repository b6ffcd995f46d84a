package etcdstore

import (
	"context"
	"fmt"
	"slices"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// ReadAll reads keys of the job in one transaction, all at one revision. A key that ends in a slash is a prefix. The keys of
// the map are relative to the job's prefix; an absent key is not in it.
func (s *Store) ReadAll(ctx context.Context, keys ...string) (values map[string][]byte, revision int64, err error) {
	req := &pb.TxnRequest{}
	for _, key := range keys {
		get := &pb.RangeRequest{Key: []byte(s.abs(key))}
		if strings.HasSuffix(key, "/") {
			get.RangeEnd = []byte(clientv3.GetPrefixRangeEnd(s.abs(key)))
		}
		req.Success = append(req.Success, &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: get}})
	}
	answer, err := s.readTxn(ctx, req)
	if err != nil {
		return nil, 0, fmt.Errorf("read %s: %w", strings.Join(keys, ", "), err)
	}
	values = map[string][]byte{}
	for _, r := range answer.Responses {
		for _, kv := range r.GetResponseRange().Kvs {
			values[strings.TrimPrefix(string(kv.Key), s.prefix)] = kv.Value
		}
	}
	return values, answer.Header.Revision, nil
}

const jobsPrefix = "/jobs/"

// Jobs lists at most limit names of jobs that ever ran in this etcd, for messages to
// people: it reads one key for each.
func (s *Store) Jobs(ctx context.Context, limit int) ([]string, error) {
	var names []string
	answer, err := s.get(ctx, keyJob, clientv3.WithCountOnly())
	if err != nil {
		return nil, fmt.Errorf("list jobs: %w", err)
	}
	if answer.Count > 0 {
		names = append(names, "default")
	}
	for from := jobsPrefix; len(names) < limit; {
		answer, err := s.get(ctx, from, clientv3.WithRange(clientv3.GetPrefixRangeEnd(jobsPrefix)), clientv3.WithKeysOnly(), clientv3.WithLimit(1))
		if err != nil {
			return nil, fmt.Errorf("list jobs: %w", err)
		}
		if len(answer.Kvs) == 0 {
			break
		}
		name, _, _ := strings.Cut(strings.TrimPrefix(string(answer.Kvs[0].Key), jobsPrefix), "/")
		names = append(names, name)
		from = clientv3.GetPrefixRangeEnd(jobsPrefix + name + "/")
	}
	slices.Sort(names)
	return names, nil
}
