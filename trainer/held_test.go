package trainer

import (
	"context"
	"errors"
	"testing"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"trainmaster/master/netrpc/wire"
	"trainmaster/taskqueue"
)

// The answer to a heartbeat arrives after the trainer has begun another task.
func TestLateStopDoesNotEndNewerTask(t *testing.T) {
	logger, _ := logtest.NewNullLogger()
	c := &Client{config: Config{Log: logrus.NewEntry(logger)}}
	old, newer := taskqueue.Token{Attempt: 1}, taskqueue.Token{Attempt: 2}
	c.held.begin(old)
	listed := c.held.list()
	c.held.end(old)
	c.held.begin(newer)
	running, release := c.UntilStopped(t.Context(), &taskqueue.Task{Token: newer})
	defer release()
	if c.obey(&beatReply{Answer: wire.HeartbeatStop(0)}, listed); len(c.held.stopped()) > 0 {
		t.Error("stop of an earlier dispatch: the newer dispatch is stopped")
	}
	c.obey(&beatReply{Answer: wire.HeartbeatStop(0)}, c.held.list())
	<-running.Done()
	if cause := context.Cause(running); !errors.Is(cause, ErrStopped) {
		t.Errorf("cause: %v", cause)
	}
}
