package etcdstore_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"trainmaster/etcdstore"
	"trainmaster/etcdstore/etcdtest"
	"trainmaster/taskqueue"
)

// BenchmarkCommit measures one transaction at a time with 1 KB of state. BenchmarkRawTxn measures the same
// transaction with the plain etcd client.
func BenchmarkCommit(b *testing.B) {
	lock, _ := benchLock(b)
	state := randomBytes(1 << 10)
	ledger := []taskqueue.Write{{Key: "/ledger/0000000000000001", Value: randomBytes(64)}}
	var mod int64
	b.ReportAllocs()
	for b.Loop() {
		var err error
		if mod, err = lock.Commit(context.Background(), mod, state, ledger); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "txn/s")
}

func BenchmarkRawTxn(b *testing.B) {
	lock, s := benchLock(b)
	value, ledger := string(randomBytes(1<<10)), string(randomBytes(64))
	key := s.Prefix() + "/task_queues"
	var mod int64
	b.ReportAllocs()
	for b.Loop() {
		answer, err := s.Client().Txn(context.Background()).
			If(clientv3.Compare(clientv3.CreateRevision(lock.Key()), "=", lock.Revision()),
				clientv3.Compare(clientv3.ModRevision(key), "=", mod)).
			Then(clientv3.OpPut(key, value), clientv3.OpPut(s.Prefix()+"/ledger/0000000000000001", ledger)).
			Commit()
		if err != nil || !answer.Succeeded {
			b.Fatal(err)
		}
		mod = answer.Header.Revision
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "txn/s")
}

func benchLock(b *testing.B) (*etcdstore.Lock, *etcdstore.Store) {
	b.Helper()
	s := etcdtest.StartProcess(b, 0).Store()
	lock, err := s.Campaign(context.Background(), etcdstore.CampaignConfig{Address: "bench"})
	if err != nil {
		b.Fatal(err)
	}
	return lock, s
}

// BenchmarkParts reads the table of 10 million tasks: 45 parts of 1 MB.
func BenchmarkParts(b *testing.B) {
	lock, s := benchLock(b)
	mod, err := lock.Commit(context.Background(), 0, []byte("state"), nil)
	if err != nil {
		b.Fatal(err)
	}
	const n, size = 45, 1_000_000
	var parts []taskqueue.Write
	for i := range n {
		parts = append(parts, taskqueue.Write{Key: etcdstore.PartKey("bench", i), Value: randomBytes(size)})
	}
	if err := lock.PutParts(context.Background(), mod, parts, nil); err != nil {
		b.Fatal(err)
	}
	b.SetBytes(n * size)
	for b.Loop() {
		got, _, err := s.Parts(context.Background(), "bench", 0, n)
		if err != nil || !bytes.Equal(got[n-1], parts[n-1].Value) {
			b.Fatal(err)
		}
	}
}

func BenchmarkEncode(b *testing.B) {
	v := columns{Name: "state", Plane: randomBytes(600), Ids: make([]uint64, 64), ByKey: map[string]int{"a": 1}}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := etcdstore.Encode(v); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkValid(b *testing.B) {
	lock, _ := benchLock(b)
	for b.Loop() {
		if !lock.Valid() {
			b.Fatal(lock.Cause())
		}
	}
}

func randomBytes(n int) []byte {
	out := make([]byte, n)
	if _, err := rand.Read(out); err != nil {
		panic(fmt.Sprintf("crypto/rand: %v", err))
	}
	return out
}
