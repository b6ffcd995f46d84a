package taskqueue

// Effect is something that the committed state asks a component for. Effects are level-triggered and idempotent: a newer
// effect with the same key replaces an older one, and a component that missed all of them starts from Outstanding.
type Effect interface{ Key() EffectKey }

// EffectKey identifies what an effect is about. Of several effects with one key only the newest matters.
type EffectKey struct {
	Kind EffectKind
	Set  int // 0 for effects that are not about a dataset
}

// EffectKind is the type of an effect.
type EffectKind uint8

// The kinds of effects.
const (
	OnJobEnded EffectKind = iota
	OnSessionsChanged
	OnUnblocked
	OnStepCommitted
	OnPassClosed
	OnBarrierHeld
	OnCheckpointDue
	OnRollbackDue
	OnRateChanged
	OnStopDue
	OnProgressDue
	OnModelStored
	OnReported
	OnEvaluateDue
	OnEvaluationWanted
	OnTrainerHung
)

// JobEnded follows the end of the job. Status is Ended or Failed.
type JobEnded struct {
	Status Status
	Reason string
}

// SessionsChanged follows the end of a session. The session of every incarnation below Floor that is not in Live has ended
// permanently.
type SessionsChanged struct {
	Floor uint64
	Live  []uint64 // ascending
}

// Unblocked asks the committer to apply the parked requests that wait for On again.
type Unblocked struct{ On WaitFor }

// StepCommitted follows a synchronous step, or a rollback to one.
type StepCommitted struct{ Step }

// PassClosed follows the end of a pass over a dataset.
type PassClosed struct {
	Set  int
	Pass Pass
}

// BarrierHeld asks for a CutRelease: trainers wait at a cut of an earlier leader.
type BarrierHeld struct{ Checkpoint uint64 }

// CheckpointDue asks for a cut: few or no tasks are dispatched before it.
type CheckpointDue struct{}

// RollbackDue asks for a Rollback: no task is dispatched before it.
type RollbackDue struct{}

// RateChanged follows a new learning rate of an asynchronous job. In a synchronous job each step has its factor.
type RateChanged struct{ RateChange }

// Key implements Effect.
func (RateChanged) Key() EffectKey { return EffectKey{Kind: OnRateChanged} }

// Reported follows the registration of a dataset.
type Reported struct{ Set int }

// Key implements Effect.
func (e Reported) Key() EffectKey { return EffectKey{Kind: OnReported, Set: e.Set} }

// ModelStored follows a training result with a new model.
type ModelStored struct{ Model }

// Key implements Effect.
func (ModelStored) Key() EffectKey { return EffectKey{Kind: OnModelStored} }

// Key implements Effect.
func (e PassClosed) Key() EffectKey { return EffectKey{Kind: OnPassClosed, Set: e.Set} }

// Key implements Effect.
func (BarrierHeld) Key() EffectKey { return EffectKey{Kind: OnBarrierHeld} }

// Key implements Effect.
func (CheckpointDue) Key() EffectKey { return EffectKey{Kind: OnCheckpointDue} }

// Key implements Effect.
func (RollbackDue) Key() EffectKey { return EffectKey{Kind: OnRollbackDue} }

// Key implements Effect.
func (StepCommitted) Key() EffectKey { return EffectKey{Kind: OnStepCommitted} }

// Key implements Effect.
func (JobEnded) Key() EffectKey { return EffectKey{Kind: OnJobEnded} }

// Key implements Effect.
func (SessionsChanged) Key() EffectKey { return EffectKey{Kind: OnSessionsChanged} }

// Key implements Effect. The reason of the wait takes the place of the dataset.
func (e Unblocked) Key() EffectKey { return EffectKey{Kind: OnUnblocked, Set: int(e.On)} }

// effects are the effects of one batch, at most one of each key.
type effects map[EffectKey]Effect

func (q *Queue) raise(e Effect) {
	q.effects[e.Key()] = e
	q.dirty = true
}

// Outstanding returns the effects that the state still asks for. A new term starts its components from them: effects are
// not stored.
func (q *Queue) Outstanding() []Effect {
	list := []Effect{q.sessionsChanged()}
	//guard:last-step-outstanding
	if step, ok := q.SyncStep(); ok && step.Version > 0 {
		list = append(list, StepCommitted{step})
	}
	//guard:learning-rate-outstanding
	if q.sync == nil && len(q.rates) > 0 {
		list = append(list, RateChanged{q.LearningRate()})
	}
	if q.opt.Cuts {
		due := q.StepsDue()
		if due.Release {
			list = append(list, BarrierHeld{q.explicit.round})
		}
		if due.Commit {
			list = append(list, CheckpointDue{})
		}
		if due.Rollback {
			list = append(list, RollbackDue{})
		}
	}
	//guard:evaluate-due-outstanding
	if due, ok := q.evaluateDue(); ok {
		list = append(list, due)
	}
	if q.hasEnded() {
		list = append(list, JobEnded{q.status, q.reason})
	}
	for _, s := range q.sets {
		list = append(list, Reported{s.id})
	}
	return list
}

// unblock lets the committer apply the parked requests that wait for any of these again.
func (q *Queue) unblock(on ...WaitFor) {
	for _, w := range on {
		q.raise(Unblocked{w})
	}
}

func (q *Queue) sessionsChanged() SessionsChanged {
	floor, live := q.Sessions()
	return SessionsChanged{floor, live}
}
