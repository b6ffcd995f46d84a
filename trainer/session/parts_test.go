package session

import (
	"reflect"
	"testing"

	"trainmaster/master/netrpc/wire"
	"trainmaster/taskqueue"
)

// Each part reports one finish. A task that a later part reports is still held, and only the last part asks.
func TestPartsHoldTasksUntilTheyAreReported(t *testing.T) {
	token := func(n int) taskqueue.Token { return taskqueue.Token{Epoch: 1, Pass: 1, Position: n, Attempt: 1} }
	result := func(n int) taskqueue.Result { return taskqueue.Result{Token: token(n), Step: uint64(n)} }
	type part struct {
		Held     []taskqueue.Token
		Finished []taskqueue.Result
		Want     bool
	}
	for name, tt := range map[string]struct {
		whole part
		parts []part
	}{
		"nothing": {part{Held: []taskqueue.Token{token(1)}}, nil},
		"asks":    {part{Want: true}, []part{{Want: true}}},
		"reports": {part{Finished: []taskqueue.Result{result(1)}}, []part{{Finished: []taskqueue.Result{result(1)}}}},
		"three": {
			part{Held: []taskqueue.Token{token(9)}, Finished: []taskqueue.Result{result(1), result(2), result(3)}, Want: true},
			[]part{
				{[]taskqueue.Token{token(9), token(2), token(3)}, []taskqueue.Result{result(1)}, false},
				{[]taskqueue.Token{token(9), token(3)}, []taskqueue.Result{result(2)}, false},
				{[]taskqueue.Token{token(9)}, []taskqueue.Result{result(3)}, true},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := wire.NextRequest{Seq: 7, Ack: 7, SeenCommit: 3, Held: tt.whole.Held, Finished: tt.whole.Finished, Want: tt.whole.Want}
			var got []part
			for _, p := range Parts(&r) {
				if p.Seq != 7 || p.Ack != 7 || p.SeenCommit != 3 {
					t.Errorf("part %+v: expected the numbers of the request", p)
				}
				got = append(got, part{p.Held, p.Finished, p.Want})
			}
			if len(got)+len(tt.parts) > 0 && !reflect.DeepEqual(got, tt.parts) {
				t.Errorf("found %+v, expected %+v", got, tt.parts)
			}
			if !reflect.DeepEqual(r.Held, tt.whole.Held) {
				t.Errorf("the request has changed: %+v", r)
			}
		})
	}
}
