package pserver_test

import (
	"strings"
	"testing"

	"trainmaster/pserver"
	"trainmaster/trainer/params"

	pb "trainmaster/proto/trainmaster/v1"
)

// overflowOf is what the first server of a book says of values that are not finite.
func overflowOf(t testing.TB, b *book) string {
	t.Helper()
	reply, err := describe(t, b).Describe(within(t), &pb.DescribeRequest{Brief: true})
	if err != nil {
		t.Fatal(err)
	}
	if reply.GetModel() != nil || reply.GetPlacement() != nil || reply.GetState() != pb.DescribeReply_STATE_READY {
		t.Errorf("a brief description has a model or a placement, or is of another state: %v", reply)
	}
	return reply.GetOverflow()
}

// Finite gradients make a parameter or the optimizer state infinite. The server reports the value and the update, and the checkpoint
// before it stays the newest.
func TestOverflowIsNamedAndKeepsTheCheckpoint(t *testing.T) {
	table := params.Table{Name: "rows", Dim: 2, Init: params.Zeros}
	huge := func(value float32) []params.Tensor {
		g := little()
		g[0].Data[1] = value
		return g
	}
	push := func(value float32) func(t *testing.T, b *book, c *params.Client) {
		return func(t *testing.T, b *book, c *params.Client) {
			_, err := c.PushPull(within(t), 2, 1, huge(value), little())
			must(t, err)
		}
	}
	for name, test := range map[string]struct {
		mode      params.Mode
		optimizer params.Optimizer
		update    func(t *testing.T, b *book, c *params.Client)
		want      string
	}{
		"sum of a step": {params.Sync, params.Optimizer{Kind: params.SGD, LearningRate: 1}, func(t *testing.T, b *book, c *params.Client) {
			other := connect(t, b, params.Config{Mode: params.Sync, Ordinal: 1, Incarnation: 2, Optimizer: params.Optimizer{Kind: params.SGD, LearningRate: 1}, Tables: []params.Table{table}})
			mustInit(t, other, little())
			for _, c := range []*params.Client{c, other} {
				must(t, c.Stage(within(t), 0, huge(3e38), 1000))
				must(t, c.StageRows(within(t), table.Name, 0, nil, nil, 1000))
			}
			must(t, newMaster(t, b).commit(within(t), 1, by(0, 1000), by(1, 1000)))
		}, `: element 1 is -Inf after version 1`},
		"parameter":   {params.Async, params.Optimizer{Kind: params.SGD, LearningRate: 10}, push(3e38), `: element 1 is -Inf after step 2`},
		"square":      {params.Async, params.Optimizer{Kind: "adam"}, push(3e22), `: exp_avg_sq of element 1 is +Inf after step 2`},
		"accumulator": {params.Async, params.Optimizer{Kind: "adagrad"}, push(1e20), `: sum of element 1 is +Inf after step 2`},
		"row of a table": {params.Async, params.Optimizer{Kind: params.SGD, LearningRate: 10}, func(t *testing.T, _ *book, c *params.Client) {
			must(t, c.PushRows(within(t), table.Name, 1, 1, []int64{4, 5}, []float32{1, 1, 1, 3e38}))
		}, `table "rows": element 1 of the row of id 5, or of its state, is -Inf after step 1`},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			cluster := startClusterOf(t, dir, 1, pserver.JobState{})
			c := connect(t, cluster.book, params.Config{Mode: test.mode, Incarnation: 1, Optimizer: test.optimizer, Tables: []params.Table{table}})
			mustInit(t, c, little())
			set := cluster.mustTake(t)
			if what := overflowOf(t, cluster.book); what != "" {
				t.Errorf("overflow before the update: %q", what)
			}
			test.update(t, cluster.book, c)
			if what := overflowOf(t, cluster.book); !strings.Contains(what, test.want) {
				t.Errorf("overflow %q, expected %q", what, test.want)
			}
			if _, err := cluster.take(within(t)); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("a set with values that are not finite: error %v, expected %q", err, test.want)
			}
			cluster.leave(t)
			cluster = startClusterOf(t, dir, 1, pserver.JobState{LatestSet: set})
			if what := overflowOf(t, cluster.book); what != "" {
				t.Errorf("overflow after the restart from the previous set: %q", what)
			}
		})
	}
}
