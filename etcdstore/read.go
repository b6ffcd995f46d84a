package etcdstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
)

// again calls a read until it is answered: while etcd is unavailable it repeats
// it, with jitter, until ctx ends. Not for writes.
func again[A any](ctx context.Context, read func() (A, error)) (A, error) {
	pause := backoff{least: 20 * time.Millisecond, most: time.Second}
	for {
		answer, err := read()
		if err == nil {
			return answer, nil
		}
		if codeOf(rpctypes.Error(err)) != codes.Unavailable && !staleToken(err) {
			return answer, err
		}
		if sleep(ctx, pause.next()) != nil {
			return answer, errors.Join(err, ctx.Err())
		}
	}
}

func (s *Store) get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	return again(ctx, func() (*clientv3.GetResponse, error) { return s.client.Get(ctx, key, opts...) })
}

// readTxn is for transactions without a write.
func (s *Store) readTxn(ctx context.Context, req *pb.TxnRequest) (*pb.TxnResponse, error) {
	answer, err := again(ctx, func() (*pb.TxnResponse, error) { return s.kv.Txn(ctx, req, s.callOpts...) })
	if err == nil {
		s.saw(answer.Header)
	}
	return answer, err
}

// Value reads one key of the job. An absent one is nil, with revision 0.
func (s *Store) Value(ctx context.Context, key string) (value []byte, modRevision int64, err error) {
	answer, err := s.get(ctx, s.abs(key))
	if err != nil {
		return nil, 0, fmt.Errorf("read %s: %w", s.abs(key), err)
	}
	if len(answer.Kvs) == 0 {
		return nil, 0, nil
	}
	return answer.Kvs[0].Value, answer.Kvs[0].ModRevision, nil
}

// State reads /task_queues without being its leader. Absent is nil, 0.
func (s *Store) State(ctx context.Context) (value []byte, modRevision int64, err error) {
	return s.Value(ctx, keyState)
}

// partsAtOnce keeps the pipe full without asking etcd to hold more than a few
// parts in memory for us.
const partsAtOnce = 4

// Parts reads n parts of a report's task table from the given one on, in order, all at one
// revision. It fails when one is missing.
func (s *Store) Parts(ctx context.Context, reportID string, first, n int) (parts [][]byte, revision int64, err error) {
	for {
		parts, revision, err = s.partsOnce(ctx, reportID, first, n)
		if !errors.Is(err, rpctypes.ErrCompacted) || ctx.Err() != nil {
			return parts, revision, err
		}
	}
}

func (s *Store) partsOnce(ctx context.Context, reportID string, first, n int) ([][]byte, int64, error) {
	// Count first: one revision for all parts, and one clear error.
	answer, err := s.get(ctx, s.abs(keyParts+reportID+"/"), clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		return nil, 0, fmt.Errorf("count the parts of task table %s: %w", reportID, err)
	}
	revision := answer.Header.Revision
	if answer.Count < int64(first+n) {
		return nil, revision, fmt.Errorf("%w: task table %s: %d of %d parts under %s; "+
			"the state names parts that are gone: restore etcd from a snapshot that has both, or start a new job under another --job",
			errDamaged, reportID, answer.Count, first+n, s.abs(keyParts+reportID+"/"))
	}
	parts := make([][]byte, n)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(partsAtOnce)
	for i := range n {
		group.Go(func() error {
			key := s.abs(PartKey(reportID, first+i))
			answer, err := s.get(ctx, key, clientv3.WithRev(revision))
			if err != nil {
				return fmt.Errorf("read %s at revision %d: %w", key, revision, err)
			}
			if len(answer.Kvs) == 0 {
				return fmt.Errorf("%w: task table %s: part %s is missing at revision %d", errDamaged, reportID, key, revision)
			}
			parts[i] = answer.Kvs[0].Value
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, revision, err
	}
	return parts, revision, nil
}

// Roster reads all /trainers/ keys: trainer id to value.
func (s *Store) Roster(ctx context.Context) (map[string][]byte, error) {
	keys, _, err := s.Prefixed(ctx, keyTrainers)
	if err != nil {
		return nil, err
	}
	roster := make(map[string][]byte, len(keys))
	for key, value := range keys {
		roster[strings.TrimPrefix(key, keyTrainers)] = value
	}
	return roster, nil
}

// pageKeys bounds one answer of a listing.
const pageKeys = 1000

// Prefixed reads all keys of the job that begin with prefix, page by page, all
// at one revision. The keys of the map are relative to the job's prefix.
func (s *Store) Prefixed(ctx context.Context, prefix string) (values map[string][]byte, revision int64, err error) {
	for {
		values, revision, err = s.prefixedOnce(ctx, prefix)
		if !errors.Is(err, rpctypes.ErrCompacted) || ctx.Err() != nil {
			return values, revision, err
		}
	}
}

func (s *Store) prefixedOnce(ctx context.Context, prefix string) (map[string][]byte, int64, error) {
	if prefix == "" {
		return nil, 0, errors.New("list keys: an empty prefix; name the keys to read")
	}
	var (
		values   = map[string][]byte{}
		revision int64 // 0 asks for the newest; then all pages are read there
		from     = s.abs(prefix)
		end      = clientv3.GetPrefixRangeEnd(from)
	)
	for {
		page, err := s.get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(pageKeys), clientv3.WithRev(revision))
		if err != nil {
			return nil, 0, fmt.Errorf("list %s from %q: %w", s.abs(prefix), from, err)
		}
		if revision == 0 {
			revision = page.Header.Revision
		}
		for _, kv := range page.Kvs {
			values[strings.TrimPrefix(string(kv.Key), s.prefix)] = kv.Value
			from = string(kv.Key) + "\x00"
		}
		if !page.More {
			return values, revision, nil
		}
	}
}

// Addr is the value of /master/addr: where the leader serves. The zero Addr
// means that none is announced.
type Addr struct {
	Addr  string `json:"addr"`
	Term  uint64 `json:"term"`
	Lease string `json:"lease"` // hexadecimal, as etcdctl prints it and the lock's key ends
}

func parseAddr(key string, value []byte) (Addr, error) {
	var a Addr
	if err := json.Unmarshal(value, &a); err != nil {
		return Addr{}, fmt.Errorf("%s: want JSON {addr, term, lease}, found %.80q: %w", key, value, err)
	}
	return a, nil
}

// MasterAddr reads where the leader serves now.
func (s *Store) MasterAddr(ctx context.Context) (Addr, error) {
	value, _, err := s.Value(ctx, keyAddr)
	if err != nil || value == nil {
		return Addr{}, err
	}
	return parseAddr(s.abs(keyAddr), value)
}

// WatchMasterAddr sends where the leader serves, now and after every change;
// the zero Addr while none is announced. A slow receiver sees the newest only.
// The channel closes when ctx or the store ends, or when etcd refuses us.
func (s *Store) WatchMasterAddr(ctx context.Context) <-chan Addr {
	return latest(ctx, s, func(ctx context.Context, emit func(Addr)) error {
		return s.watch(ctx, s.abs(keyAddr), "", func(keys listing) bool {
			var a Addr
			for key, kv := range keys {
				parsed, err := parseAddr(key, kv.Value)
				if err != nil {
					return true // not this version; wait for a leader to write it again
				}
				a = parsed
			}
			emit(a)
			return true
		})
	})
}
