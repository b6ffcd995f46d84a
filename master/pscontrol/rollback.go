package pscontrol

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"trainmaster/master/committer"
	"trainmaster/taskqueue"
)

// rollbacks takes the cuts of a job with rollback, and rolls the job back after a loss. Data and parameters are always
// at the same cut.
//
//	CutBegin ──▶ all trainers quiesce ──────▶ all servers fix the cut ────────▶ CutRelease ──▶ files
//	   ▲              │ too late: CutRelease, nothing changed                                     │
//	   │              ▼                                                                           ▼
//	   │◀─────────────┴──────────── {latest = set, StepCommit} in one transaction, then prune ◀───┘
//
//	a server that was not brought to this epoch, or a trainer lost with a task:
//	{Rollback, the step of the parameters} in one transaction: a new epoch ──▶ all servers load the set
//
// A leader that stops between the two parts of a rollback leaves servers at an older epoch. The next leader rolls them
// back again.
//
// Migrations and rollbacks exclude each other. A rollback restores blocks that were frozen or copied for an uncommitted
// migration at their old servers. Blocks of a committed migration are restored at their new servers.
type rollbacks struct {
	*checkpointer
	// refused is the set that a server could not load at the last rollback to it, and its error.
	refused *refusedSet
	unsaved bool // the servers that were seen last keep no checkpoints: there is nothing to roll back to
}

type refusedSet struct {
	set []byte
	err error
}

const (
	statesRetry = 200 * time.Millisecond // while servers are not as a cut or a rollback needs them
	readyWait   = time.Second
)

// look rolls the job back if required, and reports whether a cut that is due can be taken. No migration runs meanwhile:
// a server that has just received its first blocks must not look like a restarted one.
func (r *rollbacks) look(ctx context.Context, isLost, isCut bool) (cut bool, err error) {
	if err := r.busy.Acquire(ctx); err != nil {
		return false, err
	}
	defer r.busy.Release()
	bounded, cancel := r.term.within(ctx, beginTimeout)
	states, err := r.term.config.Servers.States(bounded)
	cancel()
	if err != nil || len(states) == 0 {
		return false, err
	}
	if slices.ContainsFunc(states, func(s ServerState) bool { return s.Present }) {
		r.unsaved = keepNone(states)
	}
	if lost := slices.IndexFunc(states, func(s ServerState) bool { return !s.Present }); lost >= 0 {
		_, err := r.fail(ctx, fmt.Sprintf("parameter server %d was lost", lost))
		return false, err
	}
	var epoch uint32
	var status taskqueue.Status
	if err := r.term.Read(ctx, func(q *taskqueue.Queue) {
		epoch = q.Epoch()
		status, _ = q.Status()
	}); err != nil {
		return false, err
	}
	ended := status == taskqueue.Ended || status == taskqueue.Failed
	began := slices.IndexFunc(states, func(s ServerState) bool { return s.Epoch != epoch })
	isNew := began >= 0
	unrestored := slices.ContainsFunc(states, func(s ServerState) bool { return s.Unrestored != "" })
	if refused := r.refused; refused != nil && unrestored {
		set, _, err := r.term.config.Store.Value(ctx, LatestSetKey)
		if err != nil {
			return false, err
		}
		if bytes.Equal(set, refused.set) {
			return false, refused.err // another rollback would only consume an epoch
		}
	}
	switch {
	case isNew && ended && r.unsaved: // nothing to revive
	case isNew && ended:
		err = r.revive(ctx, epoch)
	//guard:new-server-detected
	case isNew:
		err = r.rollback(ctx, fmt.Sprintf("parameter server %d was restarted", began))
	case isLost && !ended:
		err = r.rollback(ctx, "a trainer was lost with a task")
	case isCut && !ended && !slices.ContainsFunc(states, func(s ServerState) bool { return !s.Ready }):
		return true, nil
	}
	if err != nil && ctx.Err() == nil {
		r.note(0, err)
		r.term.config.Log.WithError(err).Error("rollback to last cut failed, retrying")
	}
	return false, err
}

// keepNone reports whether no server that is present keeps checkpoints.
func keepNone(states []ServerState) bool {
	return !slices.ContainsFunc(states, func(s ServerState) bool { return s.KeepsCheckpoints })
}

// fail ends a job that must roll back, has trained, and has no set to roll back to: its servers keep no checkpoints, or they kept none
// at its last cut. It reports whether the job has failed.
func (r *rollbacks) fail(ctx context.Context, why string) (failed bool, err error) {
	var last taskqueue.Step
	var current taskqueue.StepPlace
	if err := r.term.Read(ctx, func(q *taskqueue.Queue) {
		last, _ = q.SyncStep()
		current = q.Steps()
	}); err != nil {
		return false, err
	}
	//guard:counted-cut-without-set-fails
	if current.Step == 0 && (last.Version == 0 || !r.unsaved) {
		return false, nil
	}
	set, _, err := r.term.config.Store.Value(ctx, LatestSetKey)
	if err != nil || set != nil {
		return false, err
	}
	//guard:job-without-checkpoints-fails
	_, err = r.term.Submit(ctx, &taskqueue.Fail{Reason: fmt.Sprintf(
		"%s, and the parameter servers kept no checkpoints to roll back to: start a new job, with --checkpoint-dir for each parameter server", why)})
	return err == nil, err
}

// failLast ends a job that must roll back in its last epoch. Its last set remains. It reports whether the job has failed.
func (r *rollbacks) failLast(ctx context.Context, why string) (failed bool, err error) {
	last := r.term.checkLastEpoch(ctx)
	//guard:last-epoch-fails
	if !errors.Is(last, taskqueue.ErrTooOften) {
		return false, last
	}
	_, err = r.term.Submit(ctx, &taskqueue.Fail{Reason: fmt.Sprintf("%s, and %v: start a new job; master model export has the parameters of the last checkpoint set", why, last)})
	return err == nil, err
}

// checkLastEpoch returns why a job cannot roll back again, nil if it can.
func (t *term) checkLastEpoch(ctx context.Context) error {
	epoch, err := read(ctx, t, (*taskqueue.Queue).Epoch)
	if err != nil || epoch < taskqueue.MaxEpoch {
		return err
	}
	return fmt.Errorf("%w: the job is in its last epoch, %d", taskqueue.ErrTooOften, epoch)
}

// dataCut is a cut of a job whose parameter servers keep no checkpoints: its tasks count, and no set is written.
type dataCut uint64

func (c dataCut) Number() uint64                             { return uint64(c) }
func (dataCut) Write(context.Context, About) ([]byte, error) { return nil, nil }
func (dataCut) Abort(context.Context) error                  { return nil }
func (dataCut) Prune(context.Context, int, []uint64) error   { return nil }

// begin quiesces all trainers while the servers fix the cut.
func (r *rollbacks) begin(ctx context.Context) (cut Cut, at *jobSnapshot, err error) {
	whole := ctx
	ctx, cancel := r.term.within(whole, beginTimeout)
	defer func() { cancel() }()
	current, err := read(ctx, r.term, (*taskqueue.Queue).Steps)
	if err != nil {
		return nil, nil, err
	}
	states, err := r.term.config.Servers.States(ctx)
	if err != nil {
		return nil, nil, err
	}
	number := max(current.Step, current.Round)
	for i, s := range states {
		//guard:cut-needs-all-servers
		if !s.Present {
			return nil, nil, fmt.Errorf("parameter server with index %d %w", i, ErrServerMissing)
		}
		number = max(number, s.LastCut)
	}
	number++
	began := r.term.Clock().Now()
	if err := r.event(ctx, &taskqueue.CutBegin{Step: number}); err != nil {
		return nil, nil, err
	}
	defer func() {
		if err = errors.Join(err, r.event(context.WithoutCancel(ctx), &taskqueue.CutRelease{})); err == nil {
			r.term.config.Log.WithFields(logrus.Fields{"cut": number, "paused": r.term.since(began).Round(time.Microsecond)}).Info("cut taken, training goes on")
		} else if cut != nil {
			err = errors.Join(err, cut.Abort(context.WithoutCancel(ctx)))
		}
	}()
	cancel()
	//guard:quiesce-time-begins-with-the-cut
	ctx, cancel = r.term.within(whole, beginTimeout) // trainers see the cut from now on: a slow commit may have delayed it
	//guard:cut-quiesces-trainers
	err = r.standStill(ctx, number)
	//guard:cut-fences-hung-trainers
	if errors.Is(err, errNotFlushed) && whole.Err() == nil {
		cancel()
		ctx, cancel = r.term.within(whole, beginTimeout)
		err = r.fence(ctx, number, err)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("cut %d: wait for trainers to stop: %w%s", number, err, r.awaited(context.WithoutCancel(ctx)))
	}
	// No push of a trainer whose session ended may be applied after the cut. An earlier attempt, also of an earlier
	// leader, may have ended sessions and failed before all servers received the floor.
	//guard:fenced-trainers-retired
	if err := r.term.sendSessions(ctx); err != nil {
		return nil, nil, fmt.Errorf("cut %d: %w", number, err)
	}
	if err := r.term.closeGate(ctx); err != nil {
		return nil, nil, err
	}
	defer r.term.gate.Release()
	if keepNone(states) {
		at, err = r.term.jobSnapshot(ctx)
		return dataCut(number), at, err
	}
	if cut, err = r.term.config.Servers.Begin(ctx, CutRequest{Term: uint64(r.term.Number()), Epoch: current.Epoch, Number: func(uint64) uint64 { return number }}); err != nil {
		return nil, nil, err
	}
	if at, err = r.term.jobSnapshot(ctx); err != nil {
		return cut, nil, err
	}
	at.position.Step = number
	//guard:restart-during-cut
	if states, err = r.term.config.Servers.States(ctx); err == nil && slices.ContainsFunc(states, func(s ServerState) bool { return s.Epoch != current.Epoch }) {
		err = fmt.Errorf("cut %d: a parameter server restarted meanwhile", number)
	}
	return cut, at, err
}

// event applies an event of the leader's own.
func (r *rollbacks) event(ctx context.Context, ev taskqueue.Event) error {
	a, err := r.term.Wait(ctx, ev)
	return stepDone(a, err)
}

func stepDone(a taskqueue.Answer, err error) error {
	switch {
	case err != nil:
		return err
	case a.Kind == taskqueue.AnswerEnded || a.Kind == taskqueue.AnswerFailed:
		return ErrNothingToCut
	case a.Kind != taskqueue.AnswerStep:
		return errNotFlushed
	}
	return nil
}

var errNotFlushed = errors.New("not every trainer has stopped for the cut")

// standStill waits until every trainer has flushed the cut. It checks again after readyWait, because the last missing
// trainer may be lost.
func (r *rollbacks) standStill(ctx context.Context, number uint64) error {
	for {
		bounded, cancel := r.term.within(ctx, readyWait)
		err := r.event(bounded, &taskqueue.CutReady{Step: number})
		late := bounded.Err() != nil
		cancel()
		switch {
		case ctx.Err() != nil:
			return errors.Join(errNotFlushed, context.Cause(ctx))
		case err == nil, !late && !errors.Is(err, errNotFlushed):
			return err
		}
	}
}

// fence ends the sessions of trainers that are silent at the cut and hold no task, and then waits again. A trainer that
// loses its last task meanwhile keeps its session. If there is no such trainer, fence returns late.
func (r *rollbacks) fence(ctx context.Context, number uint64, late error) error {
	ids, err := read(ctx, r.term, (*taskqueue.Queue).Idle)
	if err != nil || len(ids) == 0 {
		return errors.Join(late, err)
	}
	brief, cancel := r.term.within(ctx, readyWait) // a master that was paused first reads the requests that arrived meanwhile
	err = r.standStill(brief, number)
	cancel()
	if !errors.Is(err, errNotFlushed) {
		return err
	}
	for some := range slices.Chunk(ids, taskqueue.MaxFenced) {
		a, err := r.term.Submit(ctx, &taskqueue.CutFence{Step: number, Trainers: some}) // it does not wait for the others
		switch err := stepDone(a, err); {
		case errors.Is(err, committer.ErrCutDisturbed):
			return errors.Join(late, err)
		case err != nil && !errors.Is(err, errNotFlushed):
			return err
		}
	}
	r.term.config.Log.WithFields(logrus.Fields{"trainers": ids, "cut": number}).Warn("trainers silent at a cut: sessions ended")
	return r.standStill(ctx, number)
}

// awaited says which trainers the cut waits for.
func (r *rollbacks) awaited(ctx context.Context) string {
	ids, err := read(ctx, r.term, (*taskqueue.Queue).Unflushed)
	if err != nil || len(ids) == 0 {
		return ""
	}
	r.term.config.Log.WithField("trainers", ids).Warn("cut aborted and retried: these trainers did not stop for it; if one of them hangs, end its process")
	return fmt.Sprintf("; waited for %s: if one of them hangs, end its process", strings.Join(ids, ", "))
}

// publish names the set, if there is one, and counts what the cut has, in one transaction.
func (r *rollbacks) publish(ctx context.Context, number uint64, set []byte) error {
	current, err := read(ctx, r.term, (*taskqueue.Queue).Steps)
	if err != nil {
		return err
	}
	commit := &taskqueue.StepCommit{Generation: current.Generation, Step: number}
	if set == nil { // there is no set to roll back to
		commit.Version, err = read(ctx, r.term, func(q *taskqueue.Queue) uint64 { step, _ := q.SyncStep(); return step.Version })
	} else {
		var at SetAt
		at, err = r.term.config.Servers.SetAt(set)
		commit.Version = at.Version
		commit.Keys = []taskqueue.Write{{Key: LatestSetKey, Value: set}}
	}
	if err != nil {
		return err
	}
	//guard:cut-committed-before-set
	return stepDone(r.term.Submit(ctx, commit))
}

// rollback rolls the job back to its last cut, or to its beginning. The caller holds busy.
func (r *rollbacks) rollback(ctx context.Context, why string) error {
	if failed, err := r.failLast(ctx, why); failed || err != nil {
		return err
	}
	return r.rollBackTo(ctx, why, nil, func() {})
}

// rollBackTo is rollBack to another placement: keys store it in the transaction of the rollback, and committed is called after that
// transaction. [errNotCommitted] means that the outcome of the transaction is unknown.
func (r *rollbacks) rollBackTo(ctx context.Context, why string, keys []taskqueue.Write, committed func()) error {
	if failed, err := r.fail(ctx, why); failed || err != nil {
		return err
	}
	if err := r.term.gate.AcquireOn(ctx, r.term.Clock()); err != nil {
		return err
	}
	defer r.term.gate.Release()
	set, version, current, err := r.latest(ctx)
	if err != nil {
		return err
	}
	a, err := r.term.Submit(ctx, &taskqueue.Rollback{Generation: current.Generation + 1, Step: current.Step, Version: version, Keys: keys})
	if err != nil {
		return fmt.Errorf("%w: %w", errNotCommitted, err)
	}
	if err := stepDone(a, nil); err != nil {
		return err
	}
	committed()
	r.term.config.Log.WithFields(logrus.Fields{"reason": why, "set": current.Step, "epoch": a.Place.Epoch}).Warn("rolling back to last cut")
	bounded, cancel := r.term.within(ctx, writeTimeout)
	defer cancel()
	//guard:rollback-loads-set
	err = r.term.config.Servers.Rollback(bounded, uint64(r.term.Number()), a.Place.Epoch, set, r.term.scaler.committed())
	if r.refused = nil; err != nil {
		r.refused = &refusedSet{set, err}
	}
	return err
}

// revive brings servers that were lost after the end to the last cut: nothing came after it.
func (r *rollbacks) revive(ctx context.Context, epoch uint32) error {
	set, _, _, err := r.latest(ctx)
	if err != nil {
		return err
	}
	bounded, cancel := r.term.within(ctx, writeTimeout)
	defer cancel()
	return r.term.config.Servers.Rollback(bounded, uint64(r.term.Number()), epoch, set, r.term.scaler.committed())
}

// latest is the last cut; the queue and the set are of the same one.
func (r *rollbacks) latest(ctx context.Context) (set []byte, version uint64, current taskqueue.StepPlace, err error) {
	set, at, err := r.term.latestSet(ctx)
	if err != nil {
		return nil, 0, current, err
	}
	current, err = read(ctx, r.term, (*taskqueue.Queue).Steps)
	if err == nil && current.Step != at.Number {
		err = fmt.Errorf("%s names set %d, the tasks are at cut %d: restore both from one backup", LatestSetKey, at.Number, current.Step)
	}
	return set, at.Version, current, err
}
