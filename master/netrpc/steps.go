package netrpc

import (
	"trainmaster/master/netrpc/wire"
	"trainmaster/taskqueue"
)

// LastStep says which step to load. During a cut that waits: ask again.
func (c *connection) LastStep(req wire.LastStepRequest, reply *wire.StepReply) (err error) {
	defer c.recovered("LastStep", &err)
	done := false
	reply.Place, done, err = c.server.Master.LastStep(c.ctx, &taskqueue.LastStep{Trainer: req.Ordinal, Incarnation: req.Incarnation, Epoch: req.Epoch})
	err = c.stepped(req.Trainer, reply, err)
	reply.Done = done
	return err
}

// Flushed says that the caller saved its part of a step. During a cut it waits: ask again.
func (c *connection) Flushed(req wire.FlushedRequest, reply *wire.StepReply) (err error) {
	defer c.recovered("Flushed", &err)
	done := false
	reply.Place, done, err = c.server.Master.Flushed(c.ctx, &taskqueue.StepFlushed{
		Trainer: req.Ordinal, Incarnation: req.Incarnation, Generation: req.Generation, Step: req.Step, Positions: req.Positions,
	})
	err = c.stepped(req.Trainer, reply, err)
	reply.Done = done
	return err
}

// CutWatch waits until a cut waits for the caller.
func (c *connection) CutWatch(req wire.CutWatchRequest, reply *wire.StepReply) (err error) {
	defer c.recovered("CutWatch", &err)
	done := false
	reply.Place, done, err = c.server.Master.CutWatch(c.ctx, &taskqueue.CutWatch{Trainer: req.Ordinal, Incarnation: req.Incarnation})
	err = c.stepped(req.Trainer, reply, err)
	reply.Done = done
	return err
}

// Commit counts what is finished by a step, once all members have flushed it.
func (c *connection) Commit(req wire.StepRequest, reply *wire.StepReply) (err error) {
	defer c.recovered("Commit", &err)
	done := false
	reply.Place, done, err = c.server.Master.CommitStep(c.ctx, &taskqueue.StepCommit{
		Trainer: req.Ordinal, Incarnation: req.Incarnation, Generation: req.Generation, Step: req.Step,
	})
	err = c.stepped(req.Trainer, reply, err)
	reply.Done = done
	return err
}

// Rollback begins a generation of the ring from the last committed step.
func (c *connection) Rollback(req wire.StepRequest, reply *wire.StepReply) (err error) {
	defer c.recovered("Rollback", &err)
	reply.Place, err = c.server.Master.Rollback(c.ctx, &taskqueue.Rollback{
		Trainer: req.Ordinal, Incarnation: req.Incarnation, Generation: req.Generation, Step: req.Step,
	})
	return c.stepped(req.Trainer, reply, err)
}

func (c *connection) stepped(who wire.Trainer, reply *wire.StepReply, err error) error {
	c.observe(who, err)
	reply.Done = err == nil
	return words(err)
}
