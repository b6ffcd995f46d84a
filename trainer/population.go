package trainer

import (
	"context"
	"fmt"
	"io"
	"os"

	"trainmaster/taskqueue"
)

// ModelOf returns the model with which the trainer begins a training task, instead of its own. ok is false if it continues with its own model, as
// always in a job without a population.
func (c *Client) ModelOf(task *taskqueue.Task) (from taskqueue.ModelSource, ok bool) {
	from, ok = c.from[task.Token]
	return from, ok
}

// ReceiveModel writes the model with which the trainer begins a training task, and returns the version of the model, 0 of a file. received is false
// if the trainer continues with its own model. After an error, what was written is not a model: the trainer continues with its own model, and
// calls [Client.KeptModel]. A model in an object store is for the program to read: see ModelOf.
func (c *Client) ReceiveModel(ctx context.Context, task *taskqueue.Task, to io.Writer) (version int64, received bool, err error) {
	from, ok := c.ModelOf(task)
	if !ok {
		return 0, false, nil
	}
	if from.Path == "" {
		version, err = copyModelOf(ctx, from.Address, from.Ordinal, to)
		return version, err == nil, err
	}
	file, err := os.Open(from.Path)
	if err != nil {
		return 0, false, fmt.Errorf("read the model of another trainer: %w", err)
	}
	defer file.Close()
	if _, err := io.Copy(to, file); err != nil {
		return 0, false, fmt.Errorf("read the model of another trainer: %w", err)
	}
	return 0, true, nil
}

// KeptModel takes the reason for which the trainer continues with its own model, instead of the model of a training task. The next call of Next
// reports it with the finished task. The task does not fail.
func (c *Client) KeptModel(task *taskqueue.Task, reason error) { c.kept[task.Token] = reason.Error() }
