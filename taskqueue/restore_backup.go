package taskqueue

import (
	"errors"
	"fmt"
	"math"
)

// RestoringKey stands while a job is being restored from a backup: what is there is not whole
// yet, and no master begins a job over it.
const RestoringKey = "/master/restoring"

// ErrTooOften says that a job cannot be restored from a backup once more.
var ErrTooOften = errors.New("the job was restored too often")

// BackupOptions are for a queue that is restored to be revived, not to serve: no limit of
// theirs sets a task aside or pauses the job.
var BackupOptions = Options{MaxFailures: math.MaxInt32, MaxSetAside: math.MaxInt32}

// CountCut makes the state of a queue at a cut, which its leader took down while all stood still, what it became with the
// commit of that cut: see the diagram of cuts. It is for a queue that was restored from what lies beside a set of checkpoints.
func (q *Queue) CountCut(step uint64) error {
	if q.exact == nil {
		return nil // what was finished is counted
	}
	//guard:backup-cut-compared
	if q.exact.round != step {
		return fmt.Errorf("%w: the set is of cut %d, its tasks are at cut %d (0: none)", ErrDamaged, step, q.exact.round)
	}
	wait, err := q.unflushed(step)
	if err == nil && wait {
		err = errors.New("a trainer had not stopped")
	}
	if err != nil {
		return fmt.Errorf("%w: cut %d: %w", ErrDamaged, step, err)
	}
	q.commitStep(step)
	return nil
}

// Revive makes a queue that was restored from a backup a job of its own, in the store of
// another cluster or under another name. What was counted stays counted. The job may have gone
// on after the backup, and everything that knows of that is cut off from it:
//
//   - With explicit commits, what was not committed is given out again: the model is that of
//     the last committed step.
//   - Sessions end, uncharged, and what they held goes back: it is delivered again.
//   - A new job id: a trainer that saw later commits of the old job says nothing about this one.
//   - A new epoch: no token of the old job finishes anything here, and a parameter server that
//     hears of it takes no push of the old job any more.
//   - Incarnations greater than any that the old job can have given: a parameter server that
//     kept its memory takes nothing of a new trainer for a repetition.
//
// The caller flushes and stores it.
func (q *Queue) Revive(job string, jobID [16]byte, cluster uint64) error {
	if q.restores == math.MaxUint8 || q.epoch == math.MaxUint32 {
		return fmt.Errorf("%w: %d times, epoch %d", ErrTooOften, q.restores, q.epoch)
	}
	q.job, q.jobID, q.cluster = job, jobID, cluster
	q.epoch++
	q.restores++
	q.saver, q.saverUntil = 0, 0
	if q.exact != nil {
		q.rollBack(q.exact.generation)
	}
	for _, t := range q.sortedTrainers() {
		if !t.gone {
			q.ledger.lost(t)
		}
		t.gone = true
		q.giveBack(t, false)
		q.forget(t)
	}
	q.dirty = true
	return nil
}
