package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"trainmaster/etcdstore"
)

// rawLoop sends sequential transactions of the form of a commit, without the queue and without callers.
type rawLoop struct {
	client       *clientv3.Client
	lock         string // key of
	lockRevision int64
	key          string // that is overwritten
}

func newRawLoop(store *etcdstore.Store, lock string, lockRevision int64) *rawLoop {
	return &rawLoop{client: store.Client(), lock: lock, lockRevision: lockRevision, key: store.Prefix() + "/raw"}
}

// rate runs for length and returns transactions per second.
func (r *rawLoop) rate(ctx context.Context, valueBytes int, length time.Duration) (float64, error) {
	value := make([]byte, valueBytes)
	random := rand.NewChaCha8([32]byte{1})
	_, _ = random.Read(value) // never fails
	found, err := r.client.Get(ctx, r.key, clientv3.WithKeysOnly())
	if err != nil {
		return 0, fmt.Errorf("raw transactions: %w", err)
	}
	revision := int64(0)
	for _, kv := range found.Kvs {
		revision = kv.ModRevision
	}
	locked := clientv3.Compare(clientv3.CreateRevision(r.lock), "=", r.lockRevision)
	n := 0
	began := time.Now()
	for ; time.Since(began) < length; n++ {
		answer, err := r.client.Txn(ctx).
			If(locked, clientv3.Compare(clientv3.ModRevision(r.key), "=", revision)).
			Then(clientv3.OpPut(r.key, string(value))).
			Commit()
		if err != nil {
			return 0, fmt.Errorf("raw transactions: %w", err)
		}
		if !answer.Succeeded {
			return 0, errors.New("raw transactions: the lock was lost")
		}
		revision = answer.Header.Revision
	}
	return float64(n) / time.Since(began).Seconds(), nil
}
