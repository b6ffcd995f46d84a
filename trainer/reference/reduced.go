package reference

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"time"

	"github.com/sirupsen/logrus"

	"trainmaster/taskqueue"
	"trainmaster/trainer/allreduce"
	"trainmaster/trainer/model"
)

// reduced is the work of a member of a ring: it reads mini-batches of tasks, and computes their gradients. It implements [allreduce.Work].
type reduced struct {
	*supply
	replica *replica
	model   model.Model
	batch   *model.Batch
	size    int // records of a mini-batch
	journal *Journal
	log     *logrus.Entry
	state   *trainerState

	task    *taskqueue.Task // nil: none
	running context.Context // ends when the master stops the task
	unwatch context.CancelFunc

	records reader
	current allreduce.Batch // of batch
	filled  bool            // batch has the records of current
	loss    float64         // of current
	report  TaskReport
	began   time.Time
}

// reader reads the records of a task.
type reader struct {
	next func() ([]byte, error, bool)
	stop func()
	at   int64 // number of the next record

	record []byte // the next record
	err    error
	more   bool // there is a next record, or an error
}

func (r *reader) open(records iter.Seq2[[]byte, error]) {
	r.close()
	r.next, r.stop = iter.Pull2(records)
	r.at = -1
	r.advance()
}

func (r *reader) advance() {
	r.record, r.err, r.more = r.next()
	r.at++
}

func (r *reader) close() {
	if r.stop != nil {
		r.stop()
	}
	*r = reader{}
}

// Next implements [allreduce.Work].
func (r *reduced) Next(ctx context.Context, wait time.Duration, used func(taskqueue.Token) (int64, bool)) (allreduce.Batch, error) {
	if ctx.Err() != nil {
		return allreduce.Batch{}, context.Cause(ctx)
	}
	if r.task != nil && r.running.Err() != nil { // stopped by the master
		r.end(outcome{})
	}
	if r.task == nil {
		if err := r.begin(ctx, wait); err != nil || r.task == nil {
			return allreduce.Batch{}, err
		}
	}
	rate := r.client.HyperParameters(r.task)["learning-rate"]
	from, whole := used(r.task.Token)
	if whole {
		r.current, r.filled = allreduce.Batch{Token: r.task.Token, Last: true}, false
		return r.current, nil
	}
	if !r.filled || r.current.From != from {
		err := r.fill(from)
		if bad, ok := errors.AsType[*recordError](err); ok {
			warnFailed(r.log)(r.task, bad)
			r.end(outcome{failed: r.task, reason: bad})
			return allreduce.Batch{}, nil
		}
		if err != nil {
			return allreduce.Batch{}, err
		}
		r.current = allreduce.Batch{Token: r.task.Token, From: from, Records: r.batch.Len(), Last: !r.records.more, Rate: rate}
	}
	return r.current, nil
}

// begin waits for a task.
func (r *reduced) begin(ctx context.Context, wait time.Duration) error {
	if r.fetched == nil {
		r.fetch(outcome{})
	}
	s, ok := r.take(ctx, wait)
	if !ok || s.err != nil {
		return s.err
	}
	r.task = s.task
	r.running, r.unwatch = r.client.UntilStopped(r.ctx, s.task)
	r.report, r.began = TaskReport{Task: s.task}, time.Now()
	return nil
}

// end ends the work on the task.
func (r *reduced) end(o outcome) {
	r.drop()
	r.fetch(o)
}

func (r *reduced) drop() {
	if r.task != nil {
		r.unwatch()
	}
	r.records.close()
	r.task, r.filled = nil, false
}

// fill reads the next mini-batch, from a record on.
func (r *reduced) fill(from int64) error {
	if r.records.next == nil || r.records.at != from {
		var tasks Tasks = r.client
		if r.worker.RecordDelay > 0 {
			tasks = delayed{tasks, r.worker.RecordDelay}
		}
		r.records.open(tasks.Records(r.task))
		for r.records.more && r.records.err == nil && r.records.at < from {
			r.records.advance()
		}
	}
	r.batch.Reset()
	for r.records.more && r.batch.Len() < r.size {
		err := r.records.err
		if err == nil {
			err = r.batch.Append(r.records.record)
		}
		if err != nil {
			return &recordError{int(r.records.at), err}
		}
		r.records.advance()
	}
	r.filled = true
	return nil
}

// Gradient implements [allreduce.Work].
func (r *reduced) Gradient(_ context.Context, sum []float32) (err error) {
	r.loss, err = r.model.Gradients(r.replica.tensors, r.batch, viewsOf(r.replica.tensors, sum))
	if err == nil && (math.IsNaN(r.loss) || math.IsInf(r.loss, 0)) {
		err = fmt.Errorf("the loss at version %d is %v: %w; lower the learning rate or the momentum", r.state.version, r.loss, ErrDiverged)
	}
	return err
}

// Applied implements [allreduce.Work].
func (r *reduced) Applied() {
	if r.task == nil { // it was returned
		return
	}
	n := r.current.Records
	r.report.Records += n
	r.report.Batches++
	r.report.LossSum += r.loss
	r.client.Progressed(n, r.loss/float64(max(n, 1)))
}

// Finished implements [allreduce.Work].
func (r *reduced) Finished(context.Context) error {
	if r.task == nil { // it was returned: its next trainer finds that the model has all records, and reports it
		return nil
	}
	report := &r.report
	var total int64
	for _, c := range r.task.Chunks {
		total += int64(c.Index.Records)
	}
	report.Base, report.Version, report.Elapsed = total-int64(report.Records), r.state.version, time.Since(r.began)
	if r.journal != nil {
		if err := r.journal.append(r.worker.Trainer.ID, *report); err != nil {
			return err
		}
	}
	r.client.Trained(r.task, taskqueue.RunStats{Records: int64(report.Records), Seconds: report.Elapsed.Seconds(), PeakMemory: memoryInUse()})
	r.log.WithFields(logrus.Fields{"task": r.task.Token.String(), "records": report.Records, "base": report.Base, "version": report.Version}).Debug("task trained")
	r.end(outcome{finished: r.task})
	return nil
}

// Release implements [allreduce.Work].
func (r *reduced) Release() {
	if r.task == nil && r.fetched == nil {
		return // the master waits for nothing
	}
	r.drop()
	r.release()
}

// Ended implements [allreduce.Work].
func (r *reduced) Ended() <-chan struct{} { return r.ended }
