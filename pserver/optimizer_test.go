package pserver_test

import (
	"math"
	"strings"
	"testing"

	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/pserver"
	"trainmaster/pserver/optimizer"
	"trainmaster/trainer/params"
)

// everyKind is one optimizer of each kind, with everything that may go with it.
func everyKind(t *testing.T) []params.Optimizer {
	var list []params.Optimizer
	for _, kind := range optimizer.Kinds() {
		c := params.Optimizer{
			Kind: kind, LearningRate: 0.05, WeightDecay: 0.01, ClipValue: 2, ClipNorm: 300,
			Schedule: optimizer.Schedule{Kind: optimizer.Linear, Warmup: 2, Steps: 9},
		}
		switch kind {
		case optimizer.Momentum, optimizer.Nesterov:
			c.Momentum = 0.9
		case optimizer.FTRL:
			c.WeightDecay, c.L1, c.L2 = 0, 0.01, 0.1
		}
		if err := c.Validate(); err != nil {
			t.Fatal(err)
		}
		list = append(list, c)
	}
	return list
}

// push is a mean gradient and its step.
type push struct {
	step  uint64
	grads []params.Tensor
}

// trained is what pushes make of tensors, each of them as a whole, in this process.
func trained(o params.Optimizer, tensors []params.Tensor, pushes []push) []params.Tensor {
	rule := o.Rule()
	for i, tensor := range tensors {
		var state optimizer.State
		for slot := range rule.Slots() {
			state[slot] = make([]float32, len(tensor.Data))
		}
		rule.Start(tensor.Data, state)
		for n, p := range pushes {
			grad := append([]float32(nil), p.grads[i].Data...)
			rule.Apply(tensor.Data, grad, state, optimizer.Step{Count: uint64(n) + 1, Scale: float32(o.Schedule.At(p.step))})
		}
	}
	return tensors
}

// clipped limits the norm of grads/records.
func clipped(grads []params.Tensor, records int, limit float32) []params.Tensor {
	squares := 0.0
	for _, g := range grads {
		squares += optimizer.SquareSum(g.Data)
	}
	for _, g := range grads {
		optimizer.Scale(g.Data, optimizer.ClipFactor(math.Sqrt(squares)/float64(records), float64(limit)))
	}
	return grads
}

// During a job every server is stopped and restarted. Each optimizer continues with its state, a repeated push is applied once, and
// the schedule follows the trainer's step.
func TestOptimizersOutliveAServer(t *testing.T) {
	for _, o := range everyKind(t) {
		t.Run(o.Kind, func(t *testing.T) {
			dir, b := t.TempDir(), newBook(2)
			start := func() (list []*server) {
				for i := range 2 {
					list = append(list, startServer(t, b, i, pserver.Config{CheckpointDir: dir}))
				}
				return list
			}
			servers := start()
			c := connect(t, b, params.Config{Mode: params.Async, Optimizer: o})
			values := tensors(random(1))
			mustInit(t, c, values)
			var pushes []push
			for _, step := range []uint64{1, 2, 4, 5, 8} {
				pushes = append(pushes, push{step, clipped(tensors(random(10+step)), 1, o.ClipNorm)})
				times := 1
				if step == 4 {
					for _, s := range servers {
						s.stop()
						if err := s.wait(); err != nil {
							t.Fatal(err)
						}
					}
					servers, times = start(), 2
				}
				for range times {
					if _, err := c.PushPull(within(t), step, 1, tensors(random(10+step)), values); err != nil {
						t.Fatal(err)
					}
				}
				if err := differ(values, trained(o, tensors(random(1)), pushes)); err != nil {
					t.Fatalf("after step %d: %v", step, err)
				}
			}
		})
	}
}

// Synchronous steps give the same bits as one process with whole tensors, with any number of servers. Each trainer's gradient is
// clipped by its norm, the sum is divided by the records, and the rule runs with the schedule at the version.
func TestOptimizersInSynchronousSteps(t *testing.T) {
	const steps = 4
	records := []int{10, 17}
	for _, o := range everyKind(t) {
		var pushes []push
		for version := range uint64(steps) {
			sum := clipped(tensors(random(100+version)), records[0], o.ClipNorm)
			for i, g := range clipped(tensors(random(200+version)), records[1], o.ClipNorm) {
				for j, v := range g.Data {
					sum[i].Data[j] = (sum[i].Data[j] + v) * float32(1/float64(records[0]+records[1]))
				}
			}
			pushes = append(pushes, push{version + 1, sum})
		}
		want := trained(o, tensors(random(1)), pushes)
		for _, shards := range []int{1, 3} {
			book := startServers(t, shards, pserver.Config{})
			m := newMaster(t, book)
			var clients []*params.Client
			values := tensors(random(1))
			for ordinal := range records {
				c := connect(t, book, params.Config{Mode: params.Sync, Optimizer: o, Ordinal: uint32(ordinal)})
				mustInit(t, c, values)
				clients = append(clients, c)
			}
			for version := range uint64(steps) {
				for ordinal, c := range clients {
					if err := c.Stage(within(t), version, tensors(random(uint64(ordinal+1)*100+version)), records[ordinal]); err != nil {
						t.Fatal(err)
					}
				}
				if err := m.commit(within(t), version+1, by(0, uint32(records[0])), by(1, uint32(records[1]))); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := clients[0].Pull(within(t), values, steps); err != nil {
				t.Fatal(err)
			}
			if err := differ(values, want); err != nil {
				t.Errorf("%s, %d servers: %v", o.Kind, shards, err)
			}
		}
	}
}

// ClipNorm limits the norm of the applied gradient over all tensors, not over a block or a tensor.
func TestClipNormLimitsNormOverAllTensors(t *testing.T) {
	const limit = 2
	o := params.Optimizer{Kind: params.SGD, LearningRate: 1, ClipNorm: limit}
	for _, mode := range []params.Mode{params.Async, params.Sync} {
		book := startServers(t, 2, pserver.Config{})
		c := connect(t, book, params.Config{Mode: mode, Optimizer: o})
		values := tensors(constant(0))
		mustInit(t, c, values)
		var err error
		if mode == params.Async {
			_, err = c.PushPull(within(t), 1, 1, tensors(random(3)), values)
		} else {
			if err = c.Stage(within(t), 0, tensors(random(3)), 5); err == nil {
				err = newMaster(t, book).commit(within(t), 1, by(0, 5))
			}
			if err == nil {
				_, err = c.Pull(within(t), values, 1)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		squares := 0.0
		for _, v := range values {
			squares += optimizer.SquareSum(v.Data)
		}
		if norm := math.Sqrt(squares); math.Abs(norm-limit) > 1e-5 {
			t.Errorf("%v: parameters moved by %v, expected %v", mode, norm, limit)
		}
	}
}

// A trainer with another optimizer than the checkpoints receives an error that names both.
func TestCheckpointOfAnotherOptimizer(t *testing.T) {
	dir, b := t.TempDir(), newBook(1)
	s := startServer(t, b, 0, pserver.Config{CheckpointDir: dir})
	mustInit(t, connect(t, b, params.Config{Mode: params.Async, Optimizer: heavy}), tensors(constant(0)))
	s.stop()
	if err := s.wait(); err != nil {
		t.Fatal(err)
	}
	startServer(t, b, 0, pserver.Config{CheckpointDir: dir})
	for _, o := range []params.Optimizer{
		{Kind: optimizer.Adam}, {Kind: params.Nesterov, LearningRate: 0.1, Momentum: 0.9},
		{Kind: params.Momentum, LearningRate: 0.1, Momentum: 0.9, WeightDecay: 0.1},
	} {
		err := connect(t, b, params.Config{Mode: params.Async, Optimizer: o, Ordinal: 3}).Init(within(t), tensors(constant(0)))
		for _, want := range []string{`"--optimizer momentum --learning-rate 0.1 --momentum 0.9"`, `yours "--optimizer ` + o.Kind, "empty checkpoint directory"} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v: %v, expected %q", o, err, want)
			}
		}
	}
	addrs, err := b.complete(within(t))
	if err != nil {
		t.Fatal(err)
	}
	reply, err := control(t, addrs[0]).Describe(within(t), &pb.DescribeRequest{})
	if err != nil || reply.GetModel().GetOptimizer().GetKind() != params.Momentum {
		t.Errorf("described as %v, %v", reply.GetModel().GetOptimizer(), err)
	}
}
