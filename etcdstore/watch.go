package etcdstore

import (
	"context"
	"fmt"
	"time"

	"github.com/sirupsen/logrus"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// listing is what a key range held at one revision, by absolute key.
type listing map[string]*mvccpb.KeyValue

// watch calls changed with the contents of the keys in [from, end) (with end "", the one key), and again after each change,
// until changed returns false (nil), ctx ends (its error) or etcd refuses the request. The ranges are small: registries, one
// key. It survives compaction under the watch, lost connections and a member without a leader: each time it lists again. The
// listing belongs to watch.
func (s *Store) watch(ctx context.Context, from, end string, changed func(listing) (more bool)) error {
	var opts []clientv3.OpOption
	if end != "" {
		opts = append(opts, clientv3.WithRange(end))
	}
	pause := backoff{least: 20 * time.Millisecond, most: time.Second}
	for {
		answer, err := s.get(ctx, from, opts...)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case refused(err):
			return fmt.Errorf("list %s: %w", from, err)
		case err != nil:
			//guard:watch-backoff
			if err := sleep(ctx, pause.next()); err != nil {
				return err
			}
			continue
		}
		keys := make(listing, len(answer.Kvs))
		for _, kv := range answer.Kvs {
			keys[string(kv.Key)] = kv
		}
		if !changed(keys) {
			return nil
		}
		more, err := s.applyEvents(ctx, from, append(opts, clientv3.WithRev(answer.Header.Revision+1)), keys, func(keys listing) bool {
			pause.reset()
			return changed(keys)
		})
		switch {
		case !more:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		//guard:watch-retried
		case refused(err):
			return fmt.Errorf("watch %s: %w", from, err)
		}
		if err := sleep(ctx, pause.next()); err != nil {
			return err
		}
	}
}

// applyEvents applies events to keys until changed has enough (more is false) or the
// watch breaks.
func (s *Store) applyEvents(ctx context.Context, from string, opts []clientv3.OpOption, keys listing, changed func(listing) bool) (more bool, err error) {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	for answer := range s.client.Watch(ctx, from, opts...) {
		if err := answer.Err(); err != nil {
			return true, err
		}
		for _, event := range answer.Events {
			if event.Type == mvccpb.Event_DELETE {
				delete(keys, string(event.Kv.Key))
			} else {
				keys[string(event.Kv.Key)] = event.Kv
			}
		}
		if len(answer.Events) > 0 && !changed(keys) {
			return false, nil
		}
	}
	return true, nil
}

// latest runs source until the store closes or ctx ends, and sends each value that it emits through a channel that holds the
// newest value only. If source returns an error, because etcd refuses a watch, latest runs it again after a pause.
func latest[V any](ctx context.Context, s *Store, source func(ctx context.Context, emit func(V)) error) <-chan V {
	out := make(chan V, 1)
	ctx, cancel := s.bound(ctx)
	s.spawn(func() {
		defer close(out)
		defer cancel()
		emit := func(v V) {
			select {
			case <-out:
			default:
			}
			out <- v
		}
		pause := backoff{least: time.Second, most: 10 * time.Second}
		for {
			err := source(ctx, emit)
			if err == nil || ctx.Err() != nil {
				return
			}
			logrus.WithError(err).Error("etcd refuses a watch, trying again")
			//guard:refused-watch-retried
			if sleep(ctx, pause.next()) != nil {
				return
			}
		}
	})
	return out
}

// bound is ctx, ended also by the store's end.
func (s *Store) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(s.ctx, cancel)
	return ctx, func() {
		stop()
		cancel()
	}
}
