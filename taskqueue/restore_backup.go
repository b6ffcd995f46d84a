package taskqueue

import (
	"errors"
	"fmt"
	"math"
)

// RestoringKey exists while a job is restored from a backup: the stored state is incomplete, and no master begins a job over
// it.
const RestoringKey = "/master/restoring"

// ErrTooOften says that a job cannot roll back, or be restored from a backup, once more.
var ErrTooOften = errors.New("too many rollbacks or restores of the job")

// MaxEpoch is the last epoch of a job with cuts, and of a job that can be restored: a frame to a parameter server has 16 bits for it.
const MaxEpoch = math.MaxUint16

// AsStored are options for a queue that is restored to be read: the job has not ended if its state has not.
//
//guard:held-job-read-as-stored
var AsStored = Options{HoldEnd: true}

// BackupOptions are for a queue that is restored to be revived, not to serve: no limit of
// theirs sets a task aside or pauses the job. As with AsStored, the job has not ended if its state has not.
//
//guard:held-job-revived
var BackupOptions = Options{MaxFailures: math.MaxInt32, MaxSetAside: math.MaxInt32, HoldEnd: true}

// CountCut applies the commit of a cut to a queue at that cut: see the diagram of cuts. The queue is restored from the state
// that is stored with a set of checkpoints. The leader recorded that state while all members were quiesced.
func (q *Queue) CountCut(step uint64) error {
	if q.explicit == nil {
		return nil // all finished tasks are counted
	}
	//guard:backup-cut-compared
	if q.explicit.round != step {
		return fmt.Errorf("%w: expected a set of cut %[3]d (0: none), the cut of its tasks, found a set of cut %[2]d", ErrDamaged, step, q.explicit.round)
	}
	wait, err := q.unflushed(step)
	if err == nil && wait {
		err = errors.New("expected stopped trainers, found a running trainer")
	}
	if err != nil {
		return fmt.Errorf("%w: cut %d: %w", ErrDamaged, step, err)
	}
	q.commitStep(step)
	return nil
}

// Revive makes a queue that was restored from a backup a separate job, in the store of another cluster or under another name.
// Counted tasks stay counted. The original job may have continued after the backup, so everything later is invalidated:
//
//   - With explicit commits, uncommitted tasks are dispatched again: the model is at the last committed step.
//   - Sessions end, uncharged, and their tasks go back: they are delivered again.
//   - The job gets a new id: reports from a trainer that saw later commits of the old job do not apply to this job.
//   - The epoch grows: no token of the old job finishes anything here, and a parameter server that receives the new epoch
//     takes no push of the old job.
//   - Incarnations are greater than any incarnation of the old job: a parameter server that kept its memory does not take a
//     push of a new trainer for a repetition.
//
// The caller flushes and stores it.
func (q *Queue) Revive(job string, jobID [16]byte, cluster uint64) error {
	if q.restores == math.MaxUint8 || q.epoch >= MaxEpoch {
		return fmt.Errorf("%w: expected fewer than %d restores and an epoch below %d, found %d restores and epoch %d: start a new job",
			ErrTooOften, math.MaxUint8, MaxEpoch, q.restores, q.epoch)
	}
	q.job, q.jobID, q.cluster = job, jobID, cluster
	q.epoch++
	q.restores++
	q.saver, q.saverUntil = 0, 0
	if q.explicit != nil {
		q.rollback(q.explicit.generation)
	}
	for _, t := range q.sortedTrainers() {
		if !t.gone {
			q.ledger.lost(t)
		}
		t.gone = true
		q.giveBack(t, false, nil)
		q.forget(t)
	}
	q.dirty = true
	return nil
}
