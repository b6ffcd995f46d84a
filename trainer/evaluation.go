package trainer

import (
	"fmt"

	"trainmaster/taskqueue"
)

// NotFiniteError is the reason of a failed evaluation task with a metric that is NaN or infinite.
type NotFiniteError struct {
	Metric string
	Value  float64
}

func (e *NotFiniteError) Error() string {
	return fmt.Sprintf("metric %q: expected a finite number, found %v", e.Metric, e.Value)
}

// Round returns the round of an evaluation task, with the model to evaluate. A trainer receives such tasks if Config.Accepts has
// taskqueue.Evaluation: their Token.Kind is taskqueue.Evaluation, and they must change no parameters.
func (c *Client) Round(task *taskqueue.Task) taskqueue.Round {
	return c.rounds[task.Token]
}

// Measured takes the metrics of an evaluation task. The next call of Next reports them with the finished task. Set.Encode in
// trainmaster/master/evaluation/metric makes the bytes.
func (c *Client) Measured(task *taskqueue.Task, metrics []byte) { c.metrics[task.Token] = metrics }

// Stored names where the trainer has stored its model after a training task. The next call of Next reports it with the finished task.
// Without parameter servers, an evaluation round evaluates the newest of these models.
func (c *Client) Stored(task *taskqueue.Task, model taskqueue.Model) { c.models[task.Token] = model }
