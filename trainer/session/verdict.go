package session

import (
	"errors"
	"net/rpc"
	"time"

	"trainmaster/master/netrpc/wire"
)

const (
	pauseFirst = 20 * time.Millisecond
	pauseMost  = 2 * time.Second
)

// Verdict is the action after the error of a call.
type Verdict int

// The verdicts on a call.
const (
	Answered Verdict = iota // the error, if any, is the answer
	Again                   // repeat the same request, perhaps to another master
)

// Classify returns the action after the outcome of a call. A call without an answer of the job itself is repeated: the connection broke,
// the master is not the leader, or its store accepts no writes.
func Classify(err error) Verdict {
	var server rpc.ServerError
	switch {
	case err == nil:
		return Answered
	//guard:retry-on-failover
	case errors.Is(err, wire.ErrNotLeader), errors.Is(err, wire.ErrNotStored):
		return Again
	case errors.As(err, &server):
		return Answered
	}
	//guard:retry-on-broken-connection
	return Again
}

// Backoff returns the pause before attempt n (from 0). It doubles, and is random in its upper half, so
// that ten thousand trainers do not reconnect at the same time.
func Backoff(n int, random float64) time.Duration {
	pause := min(pauseFirst<<min(n, 20), pauseMost)
	//guard:backoff-jitter
	return pause/2 + time.Duration(random*float64(pause/2))
}
