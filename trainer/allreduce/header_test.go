package allreduce

import (
	"slices"
	"testing"

	"trainmaster/taskqueue"
)

func TestHeaderRoundTrip(t *testing.T) {
	want := header{version: 7, newest: 8, ended: true, batch: Batch{
		Token: taskqueue.Token{Epoch: 2, Kind: taskqueue.Training, Dataset: 3, Pass: 4, Position: 1 << 40, Attempt: 5}, From: 1 << 50, Records: 64, Last: true, Rate: 0.125,
	}}
	got, err := decodeHeader(want.encode())
	if err != nil || got != want {
		t.Errorf("expected %+v, found %+v, %v", want, got, err)
	}
	if _, err := decodeHeader(want.encode()[1:]); err == nil {
		t.Error("a short header: expected an error")
	}
}

// A step has each record of a task once.
func TestAcceptedContributions(t *testing.T) {
	var p Progress
	p.Add(token(1, 0), 64, false)
	p.Add(token(1, 1), 10, true)
	attempt := func(tok taskqueue.Token, n int) taskqueue.Token {
		tok.Attempt = taskqueue.Attempt(n)
		return tok
	}
	batch := func(tok taskqueue.Token, from int64) header {
		return header{batch: Batch{Token: tok, From: from, Records: 32}}
	}
	for name, c := range map[string]struct {
		headers []header
		want    []bool
	}{
		"next records of two tasks": {[]header{batch(token(1, 0), 64), batch(token(1, 2), 0)}, []bool{true, true}},

		"records that the model has": {[]header{batch(token(1, 0), 0), batch(token(1, 0), 32)}, []bool{false, false}},

		"records after a gap": {[]header{batch(token(1, 2), 32)}, []bool{false}},

		"task that the model has": {[]header{batch(token(1, 1), 0), batch(token(1, 1), 10)}, []bool{false, false}},
		"no task":                 {[]header{{}, {batch: Batch{Token: token(1, 1), Last: true}}}, []bool{false, false}},

		"same task: the later attempt":          {[]header{batch(attempt(token(1, 2), 1), 0), batch(attempt(token(1, 2), 3), 0), batch(attempt(token(1, 2), 2), 0)}, []bool{false, true, false}},
		"same task and attempt: the lower rank": {[]header{batch(token(1, 2), 0), batch(token(1, 2), 0)}, []bool{true, false}},

		"position of another pass": {[]header{batch(token(2, 1), 0), batch(token(2, 0), 0)}, []bool{true, true}},
	} {
		if got := accept(&p, c.headers); !slices.Equal(got, c.want) {
			t.Errorf("%s: expected %v, found %v", name, c.want, got)
		}
	}
}
