package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sirupsen/logrus"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// KeepRevisions is how much history a watch can be behind and still resume.
const KeepRevisions = 10_000

// CompactLoop compacts the history to keep revisions behind the newest, every
// so often, until ctx ends (nil). Only for an etcd of our own: it concerns all
// keys. A failure is logged once and tried again next time.
func (s *Store) CompactLoop(ctx context.Context, every time.Duration, keep int64) error {
	if !s.ownEtcd {
		return errors.New("compact history: this etcd is not declared our own; it may serve others: give --own-etcd, or let etcd compact by itself")
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	var failing bool
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		err := s.compact(ctx, keep)
		if err != nil && !failing && ctx.Err() == nil {
			logrus.WithError(err).Warn("etcd history not compacted")
		}
		failing = err != nil
	}
}

func (s *Store) compact(ctx context.Context, keep int64) error {
	answer, err := s.get(ctx, s.abs(keyState), clientv3.WithCountOnly())
	if err != nil {
		return fmt.Errorf("read etcd's revision: %w", err)
	}
	target := answer.Header.Revision - keep
	if target <= 0 {
		return nil
	}
	// "compacted" means that another process compacted at least as far.
	if _, err := s.client.Compact(ctx, target); err != nil && !errors.Is(err, rpctypes.ErrCompacted) {
		return fmt.Errorf("compact etcd's history to revision %d: %w", target, err)
	}
	return nil
}

// uncompacted is the number of revisions of history above which CheckAutoCompaction warns.
var uncompacted int64 = 200_000 // lowered by the test

// CheckAutoCompaction returns a warning if the history of this etcd seems not to be compacted; "" if it is compacted or that
// is not known yet. etcd reports its configuration to no client, but a far older revision that can still be read shows it:
// call it periodically.
func (s *Store) CheckAutoCompaction(ctx context.Context) (warning string, err error) {
	answer, err := s.get(ctx, s.abs(keyState), clientv3.WithCountOnly())
	if err != nil {
		return "", fmt.Errorf("read etcd's revision: %w", err)
	}
	behind := answer.Header.Revision - uncompacted
	if behind <= 0 {
		return "", nil
	}
	_, err = s.get(ctx, s.abs(keyState), clientv3.WithCountOnly(), clientv3.WithRev(behind))
	switch {
	case errors.Is(err, rpctypes.ErrCompacted):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("read at revision %d: %w", behind, err)
	}
	return fmt.Sprintf("etcd keeps more than %d revisions of history and will run full: "+
		"start it with --auto-compaction-mode=revision --auto-compaction-retention=%d, or give --own-etcd if it serves only this job",
		uncompacted, KeepRevisions), nil
}

// Size is how full etcd's database is, in bytes, at the fullest endpoint.
type Size struct {
	Total int64 // on disk
	InUse int64 // of it, not free for reuse
	Quota int64 // where etcd stops taking writes; 0 when it does not say
}

// Size asks every endpoint; it fails when none answers.
func (s *Store) Size(ctx context.Context) (Size, error) {
	var (
		fullest Size
		failed  error
		heard   bool
	)
	for _, endpoint := range s.endpoints {
		answer, err := s.client.Status(ctx, endpoint)
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("status of etcd at %s: %w", endpoint, err))
			continue
		}
		heard = true
		if answer.DbSize >= fullest.Total {
			fullest = Size{Total: answer.DbSize, InUse: answer.DbSizeInUse, Quota: answer.DbSizeQuota}
		}
	}
	if !heard {
		return Size{}, failed
	}
	return fullest, nil
}
