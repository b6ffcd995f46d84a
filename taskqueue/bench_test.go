package taskqueue

import (
	"bytes"
	"compress/gzip"
	"encoding/gob"
	"fmt"
	"testing"
)

// fleet is a queue without a table and with trainers that hold one task each. The benchmarks never read the table.
type fleet struct {
	*testing.B
	q        *Queue
	now      Clock
	trainers []client
}

func newFleet(b *testing.B, tasks, trainers int, opt Options) *fleet {
	f := &fleet{B: b, q: New("job", [16]byte{1}, 7, opt), now: 1, trainers: make([]client, trainers)}
	table := NewTable(0)
	table.sizes = make([]uint32, tasks) // Report reads nothing else
	f.q.Apply(1, &Report{SetSpec: SetSpec{Shuffle: true, Seed: 42}, Digest: [32]byte{9}, ReportID: "r", Table: table})
	for i := range f.trainers {
		a := f.q.Apply(1, &Join{ID: fmt.Sprint("trainer-", i), Address: "10.0.0.1:4000"})
		f.trainers[i] = client{ordinal: a.Ordinal, incarnation: a.Incarnation, seq: uint64(i % 100)}
		f.next(i)
	}
	f.q.Ready()
	return f
}

// next finishes the task of trainer i and asks for another task.
func (f *fleet) next(i int) {
	c := &f.trainers[i]
	c.seq++
	ev := Request{Trainer: c.ordinal, Incarnation: c.incarnation, Seq: c.seq, Ack: c.seq, Want: true}
	var result [1]Result
	if len(c.held) > 0 {
		result[0].Token = c.held[0]
		ev.Finished = result[:]
	}
	a := f.q.Apply(f.now, &ev)
	if a.Kind != AnswerTask || len(a.Finishes) > 0 && a.Finishes[0] != Counted {
		f.Fatalf("%+v", a)
	}
	c.held = append(c.held[:0], a.Token)
}

// BenchmarkApply measures one request that finishes a task and asks for the next, at 10 million tasks and one commit
// every 64 requests.
func BenchmarkApply(b *testing.B) {
	for _, trainers := range []int{64, 1024, 10000} {
		b.Run(fmt.Sprint(trainers), func(b *testing.B) {
			f := newFleet(b, 10_000_000, trainers, Options{Rolling: true})
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				f.next(i % trainers)
				if i++; i%64 == 0 {
					f.now++
					f.q.Ready()
					for _, s := range f.q.sets {
						s.compact() // as Snapshot does
					}
				}
			}
		})
	}
}

func compressed(b *testing.B, s *Snapshot) int {
	var out bytes.Buffer
	zip, err := gzip.NewWriterLevel(&out, gzip.BestSpeed)
	if err != nil {
		b.Fatal(err)
	}
	if err := gob.NewEncoder(zip).Encode(s); err != nil {
		b.Fatal(err)
	}
	if err := zip.Close(); err != nil {
		b.Fatal(err)
	}
	return out.Len()
}

// BenchmarkSnapshot measures the stored state. Its size depends only on the number of pending tasks.
func BenchmarkSnapshot(b *testing.B) {
	for _, tasks := range []int{20_000, 10_000_000} {
		for _, pending := range []int{64, 1024, 10000} {
			b.Run(fmt.Sprintf("tasks=%d/pending=%d", tasks, pending), func(b *testing.B) {
				f := newFleet(b, tasks, pending, Options{Rolling: true})
				for i := range 3 * pending { // the trainers lose step with each other
					f.now += Clock(i % 7)
					f.next(i * 7919 % pending)
				}
				b.ReportAllocs()
				var s *Snapshot
				for b.Loop() {
					s = f.q.Snapshot(1, 2)
				}
				b.ReportMetric(float64(compressed(b, s)), "gzip-B")
				b.ReportMetric(float64(len(s.Sets[0].Live)), "live-B")
			})
		}
	}
}

func BenchmarkRestore(b *testing.B) {
	f := newFleet(b, 10_000_000, 10_000, Options{})
	roster := map[string][]byte{}
	for _, t := range f.q.trainers {
		roster[t.id] = t.encode()
	}
	s := f.q.Snapshot(1, 2)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Restore(s, roster, []*Table{nil}, Options{}); err != nil {
			b.Fatal(err)
		}
	}
}
