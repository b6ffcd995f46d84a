package allreduce

import (
	"maps"
	"reflect"
	"testing"

	"pgregory.net/rapid"

	"trainmaster/taskqueue"
)

func token(pass, position int) taskqueue.Token {
	return taskqueue.Token{Epoch: 1, Pass: taskqueue.Pass(pass), Position: position, Attempt: 1}
}

// The progress equals a map from tasks to records, also after it was sent to another member.
func TestProgressEqualsMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type entry struct {
			records int64
			whole   bool
		}
		var p Progress
		want := map[int]entry{}
		for _, at := range rapid.SliceOf(rapid.IntRange(0, 20)).Draw(t, "positions") {
			e := want[at]
			if e.whole {
				continue
			}
			last := rapid.Bool().Draw(t, "last")
			e.records, e.whole = e.records+3, last
			if last {
				e.records = 0
			}
			want[at] = e
			p.Add(token(1, at), 3, last)
		}
		b := p.encode()
		sent, err := decodeProgress(b)
		if err != nil {
			t.Fatal(err)
		}
		for at := range 22 {
			for name, q := range map[string]*Progress{"own": &p, "sent": &sent} {
				records, whole := q.Used(token(1, at))
				if got := (entry{records, whole}); got != want[at] {
					t.Fatalf("%s: position %d: expected %+v, found %+v", name, at, want[at], got)
				}
			}
		}
	})
}

func TestProgressOfWholePassIsOneSpan(t *testing.T) {
	var p Progress
	for at := range 1000 {
		p.Add(token(1, at*7%1000), 1, true) // in any order
	}
	if of := p.passes[passOf(token(1, 0))]; !reflect.DeepEqual(of.whole, []span{{0, 999}}) || len(of.parts) != 0 {
		t.Errorf("found %+v", of)
	}
}

// Two passes can have tasks at the same time. Older ones are dropped, and other datasets are not.
func TestProgressDropsEndedPasses(t *testing.T) {
	var p Progress
	other := token(1, 0)
	other.Dataset = 1
	for _, tok := range []taskqueue.Token{other, token(1, 0), token(2, 0), token(3, 0)} {
		p.Add(tok, 1, true)
	}
	got := map[pass]bool{}
	for k := range p.passes {
		got[k] = true
	}
	want := map[pass]bool{passOf(other): true, passOf(token(2, 0)): true, passOf(token(3, 0)): true}
	if !maps.Equal(got, want) {
		t.Errorf("expected %v, found %v", want, got)
	}
}

func FuzzProgress(f *testing.F) {
	var p Progress
	p.Add(token(1, 3), 5, false)
	p.Add(token(1, 4), 5, true)
	f.Add(p.encode())
	f.Add([]byte{1, 0, 1, 255, 255, 255, 255, 15})
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := decodeProgress(b)
		if err != nil {
			return
		}
		again, err := decodeProgress(p.encode())
		if err != nil || !reflect.DeepEqual(p, again) {
			t.Fatalf("%+v: %+v, %v", p, again, err)
		}
	})
}
