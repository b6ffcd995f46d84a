package pscontrol

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"trainmaster/master/component"
	"trainmaster/taskqueue"
)

// Faults are the conditions of parameter servers that only an operator can end, each with the index of its server. A fault that does
// not exist is "".
type Faults struct {
	Overflow   string // the first value that is not finite, of each server that has one
	Unrestored string // why servers wait without parameters: the checkpoint to start from is damaged or missing
	StageRoom  string // why no synchronous step can be complete. The term adds it to the answer of the servers
}

const faultsEvery = 5 * time.Second

// faults returns the component that reads the faults of the servers for the status and the log.
func (c *Control) faults() component.Component {
	return &part{Control: c, name: "parameter server faults", run: func(ctx context.Context, t *term, _ *component.Mailbox) error { return t.watchFaults(ctx, c.Status) }}
}

// watchFaults notes the faults of parameter servers for the status, and logs new ones and the missing servers, until ctx ends.
func (t *term) watchFaults(ctx context.Context, status func(context.Context) Status) error {
	var before Faults
	var missing absence
	for ctx.Err() == nil {
		now := t.readFaults(ctx, before)
		t.faults.Store(&now)
		t.logFault("parameters overflowed: checkpoints stopped", "value", now.Overflow, before.Overflow)
		t.logFault("parameter servers wait: checkpoint is damaged or missing", "reason", now.Unrestored, before.Unrestored)
		t.logFault("synchronous steps cannot be complete", logrus.ErrorKey, now.StageRoom, before.StageRoom)
		before = now
		if s := status(ctx); s.Unknown == "" {
			missing.note(t.config.Log, s.Missing, t.config.Start)
		}
		t.Clock().Sleep(ctx, faultsEvery)
	}
	return context.Cause(ctx)
}

// readFaults returns the faults that are there now. Those of the servers are the ones before if no server answers.
func (t *term) readFaults(ctx context.Context, before Faults) Faults {
	bounded, cancel := t.within(ctx, faultsEvery)
	defer cancel()
	states, err := t.config.Servers.States(bounded)
	t.postMemory(states)
	now := faultsOf(states)
	if err != nil && now == (Faults{}) {
		now = before
	}
	now.StageRoom = ""
	if err := t.checkStageRoom(bounded, states, 0); errors.Is(err, ErrStageRoom) {
		now.StageRoom = err.Error()
	}
	return now
}

// postMemory posts the memory of the servers that run in a container with a limit.
func (t *term) postMemory(states []ServerState) {
	used := map[string]uint64{}
	for _, s := range states {
		if s.MemoryUsed > 0 {
			used[s.Address] = s.MemoryUsed
		}
	}
	if len(used) > 0 {
		t.Post(component.ServerMemory{Used: used})
	}
}

// faultsOf returns the faults in the states of the servers.
func faultsOf(states []ServerState) Faults {
	var overflow, unrestored []string
	for i, s := range states {
		if s.Overflow != "" {
			overflow = append(overflow, fmt.Sprintf("parameter server %d: %s", i, s.Overflow))
		}
		if s.Unrestored != "" {
			unrestored = append(unrestored, fmt.Sprintf("parameter server %d: %s", i, s.Unrestored))
		}
	}
	return Faults{Overflow: strings.Join(overflow, "; "), Unrestored: strings.Join(unrestored, "; ")}
}

// logFault logs a fault whose text has changed.
func (t *term) logFault(message, field, now, before string) {
	if now != "" && now != before {
		t.config.Log.WithField(field, now).Error(message)
	}
}

// ErrStageRoom: the gradients of a synchronous step do not fit the parameter servers.
var ErrStageRoom = errors.New("no room for staged gradients")

// checkStageRoom returns [ErrStageRoom] if the gradients of all trainers do not fit --stage-bytes, on as many servers; 0: as many as
// there are. It returns nil if a server is missing, which is reported elsewhere, has no parameters or is asynchronous.
func (t *term) checkStageRoom(ctx context.Context, states []ServerState, servers int) error {
	count, err := read(ctx, t, (*taskqueue.Queue).Trainers)
	if err != nil {
		return err
	}
	trainers := uint64(max(count-t.config.Backups, 1))
	var all uint64
	limit := uint64(math.MaxUint64)
	for i, s := range states {
		if s.StageLimit == 0 {
			return nil
		}
		if servers == 0 && trainers*s.StageNeed > s.StageLimit {
			return fmt.Errorf("%w: parameter server %d: expected at most %d bytes (--stage-bytes), found %d trainers with %d bytes each: start the servers with a greater --stage-bytes, or add servers with master scale",
				ErrStageRoom, i, s.StageLimit, trainers, s.StageNeed)
		}
		all, limit = all+s.StageNeed, min(limit, s.StageLimit)
	}
	//guard:stage-room-before-scale
	if servers == 0 {
		return nil
	}
	if each := (all + uint64(servers) - 1) / uint64(servers); trainers*each > limit {
		return fmt.Errorf("%w: on %d parameter servers: expected at most %d bytes (--stage-bytes), found %d trainers with %d bytes each: start the servers with a greater --stage-bytes first",
			ErrStageRoom, servers, limit, trainers, each)
	}
	return nil
}

// absence is which servers are missing, as it was read last and as it was logged.
type absence struct{ read, logged []int }

// note logs the missing servers if two reads in a row found the same ones, and once when no server is missing any more. A restart that
// takes less time is not logged.
func (a *absence) note(log *logrus.Entry, missing []int, start string) {
	switch {
	case len(missing) == 0 && len(a.logged) > 0:
		log.Info("all parameter servers registered")
		a.logged = nil
	//guard:missing-server-logged
	case len(missing) > 0 && slices.Equal(missing, a.read) && !slices.Equal(missing, a.logged):
		log.WithFields(logrus.Fields{"missing": missing, "start": cmp.Or(start, "master pserver --endpoints ...")}).Warn("parameter servers missing: training waits for them")
		a.logged = missing
	}
	a.read = missing
}
