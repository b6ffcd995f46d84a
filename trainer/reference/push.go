package reference

import (
	"context"
	"errors"
	"fmt"

	"trainmaster/trainer/model"
	"trainmaster/trainer/params"
)

// Exchange configures how often an asynchronous trainer pushes gradients and pulls parameters. The zero value is one fused push-pull for each mini-batch.
type Exchange struct {
	PushEvery int // mini-batches whose gradients are pushed together; 0: 1
	PullEvery int // mini-batches after which parameters are pulled, a multiple of PushEvery; 0: PushEvery
	Staleness params.Staleness
}

// Check returns an error for an invalid combination.
func (e Exchange) Check(synchronous bool) error {
	switch {
	case synchronous && e != Exchange{}:
		return errors.New("push-every, pull-every and staleness are of asynchronous training: expected none of them in synchronous steps, each of which is one mini-batch of each trainer, computed at the version before")
	case e.PushEvery < 0 || e.PullEvery < 0:
		return fmt.Errorf("push-every %d and pull-every %d: expected 0 (1, and as often as pushed) or more", e.PushEvery, e.PullEvery)
	case e.PullEvery%max(e.PushEvery, 1) != 0:
		return fmt.Errorf("pull-every %d: expected a multiple of push-every, %d, so that the gradients of one push are of the same parameters",
			e.PullEvery, max(e.PushEvery, 1))
	}
	return e.Staleness.Validate()
}

// push pushes the mean gradient of a group of mini-batches. The step is the number of updates of the parameters that this trainer knows
// of, plus one. So the learning-rate schedule depends on the updates of the job, not on the start or the number of trainers.
func (s *session) push(ctx context.Context, group []*model.Batch) (lossSum float64, err error) {
	s.step = max(s.step, s.version) + 1
	s.unpulled++
	pull := s.unpulled*max(s.Exchange.PushEvery, 1) >= s.Exchange.PullEvery
	if pull {
		s.unpulled = 0
	}
	if lossSum, err = s.mean(ctx, group); err != nil {
		return 0, err
	}
	version, err := s.send(ctx, pull)
	if err != nil {
		return 0, fmt.Errorf("push step %d: %w", s.step, err)
	}
	s.version = version
	return lossSum, s.sendRows(ctx)
}

// send pushes. It pulls in the same exchange if a pull is due.
func (s *session) send(ctx context.Context, pull bool) (version uint64, err error) {
	if pull {
		return s.Parameters.PushPull(ctx, s.step, 1, s.sharedGradients, s.sharedParams)
	}
	return s.Parameters.Push(ctx, s.step, 1, s.sharedGradients)
}

// sendRows pushes the gradients of rows.
func (s *session) sendRows(ctx context.Context) error {
	if s.rows == nil {
		return nil
	}
	return s.rows.push(ctx, s.step)
}

// mean stores the mean gradient of the records of a group in s.gradients and s.rows.
func (s *session) mean(ctx context.Context, group []*model.Batch) (lossSum float64, err error) {
	if s.rows != nil {
		s.rows.begin()
	}
	if lossSum, err = s.computeNow(ctx, group[0], s.gradients); err != nil {
		return 0, err
	}
	records := group[0].Len()
	for _, batch := range group[1:] {
		if s.more == nil {
			s.more = model.ZerosLike(s.gradients)
		}
		loss, err := s.computeNow(ctx, batch, s.more)
		if err != nil {
			return 0, err
		}
		lossSum += loss
		records += batch.Len()
		for i, g := range s.more {
			for j, v := range g.Data {
				s.gradients[i].Data[j] += v
			}
		}
	}
	scale := 1 / float32(records)
	for _, g := range s.gradients {
		scaleAll(g.Data, scale)
	}
	if s.rows != nil {
		for _, g := range s.rows.means {
			scaleAll(g, scale)
		}
	}
	return lossSum, nil
}

func scaleAll(values []float32, scale float32) {
	for i := range values {
		values[i] *= scale
	}
}

// computeNow computes with the rows as they are.
func (s *session) computeNow(ctx context.Context, batch *model.Batch, gradients []model.Tensor) (lossSum float64, err error) {
	if s.rows == nil {
		return s.compute(batch, gradients)
	}
	if _, err := s.rows.gather(ctx, batch, 0); err != nil {
		return 0, err
	}
	lossSum, err = s.compute(batch, gradients)
	s.rows.keep(batch)
	return lossSum, err
}
