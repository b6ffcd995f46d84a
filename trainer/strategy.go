package trainer

import "trainmaster/taskqueue"

// HyperParameters returns the hyper-parameters of a training task, as the strategy of the job had them when the task was dispatched. It is
// empty in a job without a strategy. The learning rate of parameter servers is not among them. The caller must not change the map.
func (c *Client) HyperParameters(task *taskqueue.Task) map[string]float64 { return c.hyper[task.Token] }

// Trained takes the statistics of a training task. The next call of Next reports them with the finished task, for the rules of the strategy
// of the job.
func (c *Client) Trained(task *taskqueue.Task, stats taskqueue.RunStats) { c.stats[task.Token] = stats }
