package netrpc

import (
	"trainmaster/master/netrpc/wire"
	"trainmaster/taskqueue"
)

// LastStep says which step to load.
func (c *connection) LastStep(req wire.LastStepRequest, reply *wire.StepReply) (err error) {
	defer c.recovered("LastStep", &err)
	reply.Place, err = c.server.Master.LastStep(c.ctx, &taskqueue.LastStep{Trainer: req.Ordinal, Incarnation: req.Incarnation})
	return c.stepped(req.Trainer, reply, err)
}

// Flushed says that the caller saved its part of a step.
func (c *connection) Flushed(req wire.FlushedRequest, reply *wire.StepReply) (err error) {
	defer c.recovered("Flushed", &err)
	reply.Place, err = c.server.Master.Flushed(c.ctx, &taskqueue.StepFlushed{
		Trainer: req.Ordinal, Incarnation: req.Incarnation, Generation: req.Generation, Step: req.Step, Positions: req.Positions,
	})
	return c.stepped(req.Trainer, reply, err)
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
	c.heard(who, err)
	reply.Done = err == nil
	return words(err)
}
