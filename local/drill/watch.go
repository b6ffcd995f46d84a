package drill

import (
	"context"
	"errors"
	"fmt"
	"time"

	"trainmaster/etcdstore"
	"trainmaster/taskqueue"
)

// errEnded is the error of a job that has ended.
var errEnded = errors.New("the job has ended: use a job with more passes")

// look waits for the next state of the job.
func (d *Drill) look(ctx context.Context) error {
	select {
	case v, ok := <-d.states:
		if !ok {
			return errors.Join(errors.New("the watch of the job's state ended"), context.Cause(ctx))
		}
		if v.State == nil {
			return errors.New("there is no job under this name")
		}
		d.last = taskqueue.Snapshot{}
		if err := etcdstore.Decode(v.State, &d.last, maxState); err != nil {
			return fmt.Errorf("read the state: %w", err)
		}
		now := time.Now()
		d.gap.commit(now)
		if d.took.IsZero() && d.term != 0 && d.last.LockRevision > d.term {
			d.took = now
		}
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (d *Drill) hasEnded() bool {
	return d.last.Status == taskqueue.Ended || d.last.Status == taskqueue.Failed
}

// awaitWork waits until a task is finished.
func (d *Drill) awaitWork(ctx context.Context) error {
	d.say("waiting for a finished task")
	bounded, cancel := context.WithTimeoutCause(ctx, d.Patience, fmt.Errorf("no task finished within %v", d.Patience))
	defer cancel()
	for first := uint64(0); ; {
		if err := d.look(bounded); err != nil {
			return err
		}
		switch {
		case d.hasEnded():
			return errEnded
		case d.last.Status == taskqueue.Paused:
			return fmt.Errorf("the job is paused (%s): resume it with `master resume`", d.last.Reason)
		case len(d.last.Sets) == 0:
		case first == 0:
			first = d.last.Commit
		case d.last.Commit > first:
			return nil
		}
	}
}

// outlast waits until the fault ends: another master leads, or its time has passed.
func (d *Drill) outlast(ctx context.Context, s strike) error {
	bounded, cancel := context.WithTimeout(ctx, d.For)
	defer cancel()
	for !s.leader || d.took.IsZero() {
		if err := d.look(bounded); bounded.Err() != nil && ctx.Err() == nil {
			return nil
		} else if err != nil {
			return err
		}
	}
	return nil
}

// goesOn waits until the job commits after the fault, in another term if the leader must change, and returns the leader.
func (d *Drill) goesOn(ctx context.Context, s strike, report *Report, began time.Time) error {
	d.say("waiting until the job continues")
	bounded, cancel := context.WithTimeoutCause(ctx, d.Patience, fmt.Errorf("no commit within %v after the fault: check that a standby runs, or that the victim is restarted", d.Patience))
	defer cancel()
	for d.took.IsZero() {
		if err := d.look(bounded); err != nil {
			return err
		}
		if !s.gone {
			break // the first commit is sufficient
		}
	}
	if d.took.IsZero() {
		return nil
	}
	leader, err := d.successor(bounded, d.Store.MasterAddr)
	if err != nil {
		return err
	}
	report.TookOver = &Leader{Address: leader.Addr, Term: uint64(d.last.LockRevision), After: d.took.Sub(began).Seconds()}
	if p, err := listener(leader.Addr); err == nil { // else it is not a process of this machine
		report.TookOver.Process = d.nameOf(p)
	}
	return nil
}

// successor waits until the leader of a later term announces its address. The leader commits before that.
func (d *Drill) successor(ctx context.Context, read func(context.Context) (etcdstore.Addr, error)) (etcdstore.Addr, error) {
	for {
		leader, err := read(ctx)
		if err != nil || leader.Addr != "" && leader.Term > uint64(d.term) {
			return leader, err
		}
		pause := time.NewTimer(lookEvery)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return leader, context.Cause(ctx)
		}
	}
}

// awaitCounted waits until the tasks that trainers held at the fault are counted.
func (d *Drill) awaitCounted(ctx context.Context) error {
	bounded, cancel := context.WithTimeoutCause(ctx, d.Patience, fmt.Errorf("tasks that trainers held at the fault are not counted after %v: increase --patience, or list them with `master tasks`", d.Patience))
	defer cancel()
	for {
		if err := d.tracker.follow(bounded, d.Ledger, &d.last); err != nil {
			return err
		}
		switch {
		case d.tracker.allCounted():
			return nil
		case d.hasEnded():
			return errEnded
		}
		pause := time.NewTimer(lookEvery)
		select {
		case <-pause.C:
		case <-bounded.Done():
		}
		pause.Stop()
		if err := d.look(bounded); err != nil {
			return err
		}
	}
}

// prove verifies the job by its ledger.
func (d *Drill) prove(ctx context.Context, report *Report) error {
	d.say("verifying the ledger")
	passes, wrong := d.Verify(ctx)
	if passes == nil {
		return wrong
	}
	for _, p := range passes {
		report.Lost += p.Missing
		report.CountedTwice += p.CountedTwice
	}
	report.Problems = []string{}
	if wrong != nil {
		report.Problems = append(report.Problems, wrong.Error())
	}
	return nil
}
