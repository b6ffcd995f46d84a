package pserver_test

import (
	"strings"
	"sync"
	"testing"

	"trainmaster/pserver"
	"trainmaster/trainer/params"
)

// Gradients of one: after n pushes every parameter is start - n*rate exactly,
// if every push was applied once to every block.
func TestAsyncTrainersPushAtOnce(t *testing.T) {
	const trainers, steps = 4, 25
	book := startServers(t, 3, pserver.Config{})
	var group sync.WaitGroup
	for ordinal := range trainers {
		group.Go(func() {
			c := connect(t, book, params.Config{Mode: params.Async, Ordinal: uint32(ordinal)})
			values := tensors(constant(float32(ordinal))) // only the initializer's count
			if err := c.Init(within(t), values); err != nil {
				t.Error(err)
				return
			}
			for step := range uint64(steps) {
				if _, err := c.PushPull(within(t), step+1, 1, tensors(constant(1)), values); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	group.Wait()
	c := connect(t, book, params.Config{Mode: params.Async, Ordinal: trainers})
	got := tensors(constant(0))
	if err := c.Init(within(t), got); err != nil {
		t.Fatal(err)
	}
	start := got[0].Data[0] + trainers*steps*plainSGD.LearningRate
	if start != float32(int(start)) || start < 0 || start >= trainers {
		t.Errorf("parameters started at %v, expected one trainer's", start)
	}
	want := tensors(constant(got[0].Data[0]))
	if err := differ(got, want); err != nil {
		t.Error(err)
	}
	if version, err := c.Pull(within(t), got, 0); err != nil || version != trainers*steps {
		t.Errorf("version %d, %v; expected %d", version, err, trainers*steps)
	}
}

func TestAsyncFollowsTheOptimizer(t *testing.T) {
	book := startServers(t, 2, pserver.Config{})
	c := connect(t, book, params.Config{Mode: params.Async, Optimizer: heavy})
	values := tensors(random(1))
	want := tensors(random(1))
	mustInit(t, c, values)
	velocity := tensors(constant(0))
	for step := uint64(1); step <= 3; step++ {
		grads := tensors(random(10 + step))
		if _, err := c.PushPull(within(t), step, 0.5, grads, values); err != nil {
			t.Fatal(err)
		}
		for i := range want {
			for j, g := range grads[i].Data {
				v := &velocity[i].Data[j]
				*v = heavy.Momentum**v + g
				want[i].Data[j] -= heavy.LearningRate * 0.5 * *v
			}
		}
		if err := differ(values, want); err != nil {
			t.Fatalf("step %d: %v", step, err)
		}
	}
}

func TestModelsThatDiffer(t *testing.T) {
	book := startServers(t, 2, pserver.Config{})
	c := connect(t, book, params.Config{Mode: params.Async})
	mustInit(t, c, tensors(constant(0)))
	good := func() []params.Tensor { return tensors(constant(0)) }
	for want, try := range map[string]func() (params.Config, []params.Tensor){
		`your model has the tensor "extra"`: func() (params.Config, []params.Tensor) {
			return params.Config{Mode: params.Async}, append(good(), params.Tensor{Name: "extra", Shape: []int{1}, Data: []float32{1}})
		},
		`tensor "b2" has shape [10], yours [2 5]`: func() (params.Config, []params.Tensor) {
			list := good()
			list[3].Shape = []int{2, 5}
			return params.Config{Mode: params.Async}, list
		},
		`has the tensor "w2", yours has not`: func() (params.Config, []params.Tensor) {
			list := good()
			list[2].Name = "z"
			return params.Config{Mode: params.Async}, list
		},
		"in mode async, yours in mode sync": func() (params.Config, []params.Tensor) {
			return params.Config{Mode: params.Sync}, good()
		},
		"has optimizer": func() (params.Config, []params.Tensor) {
			return params.Config{Mode: params.Async, Optimizer: heavy}, good()
		},
	} {
		cfg, list := try()
		cfg.Ordinal = 7
		if err := connect(t, book, cfg).Init(within(t), list); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, expected one with %q", err, want)
		}
	}
}
