package drill

import (
	"context"
	"errors"
	"fmt"
	"time"

	"trainmaster/etcdstore"
	"trainmaster/taskqueue"
)

// errOver says that there is nothing to drill any more.
var errOver = errors.New("the job is over: drill one with more passes")

// look waits for the next state.
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

func (d *Drill) over() bool {
	return d.last.Status == taskqueue.Ended || d.last.Status == taskqueue.Failed
}

// awaitWork waits until commits show that the job is at work.
func (d *Drill) awaitWork(ctx context.Context) error {
	d.say("waiting until the job is at work")
	bounded, cancel := context.WithTimeoutCause(ctx, d.Patience, fmt.Errorf("no task finished within %v", d.Patience))
	defer cancel()
	for first := uint64(0); ; {
		if err := d.look(bounded); err != nil {
			return err
		}
		switch {
		case d.over():
			return errOver
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

// outlast waits until the fault has done what it can: another one leads, or its time is over.
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

// goesOn waits until the job commits after the fault, in another term if the leader is gone, and says who leads then.
func (d *Drill) goesOn(ctx context.Context, s strike, report *Report, began time.Time) error {
	d.say("waiting until the job goes on")
	bounded, cancel := context.WithTimeoutCause(ctx, d.Patience, fmt.Errorf("the job did not go on within %v: does another master stand by, or is the victim started again?", d.Patience))
	defer cancel()
	for d.took.IsZero() {
		if err := d.look(bounded); err != nil {
			return err
		}
		if !s.gone {
			break // any commit will do
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
	if p, err := listener(leader.Addr); err == nil { // else it is none of this machine
		report.TookOver.Process = d.nameOf(p)
	}
	return nil
}

// successor waits until the leader of a later term says where it serves. It commits before it does.
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

// settle waits until what trainers held at the fault is counted.
func (d *Drill) settle(ctx context.Context) error {
	bounded, cancel := context.WithTimeoutCause(ctx, d.Patience, fmt.Errorf("not all that trainers held at the fault is counted after %v: wait longer with --patience, or look with `master tasks`", d.Patience))
	defer cancel()
	for {
		if err := d.tracker.follow(bounded, d.Ledger, &d.last); err != nil {
			return err
		}
		switch {
		case d.tracker.settled():
			return nil
		case d.over():
			return errOver
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
