package agent_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"trainmaster/etcdstore/etcdtest"
	"trainmaster/master"
	"trainmaster/master/mastertest"
	"trainmaster/master/pscontrol"
	"trainmaster/pserver"
	"trainmaster/pserver/pservertest"
	"trainmaster/taskqueue"
	"trainmaster/trainer/params"
)

func quiet() *logrus.Entry {
	log := logrus.New()
	log.SetOutput(io.Discard)
	return logrus.NewEntry(log)
}

// serveParameters starts real parameter servers in this process, which agents of this test find.
func serveParameters(t testing.TB, n int) (addrs []string) {
	t.Helper()
	addrs, _ = pservertest.Start(t, n, pserver.Config{})
	t.Setenv(serversEnv, strings.Join(addrs, ","))
	return addrs
}

// arenaOf opens the arena of a peer and maps it.
type arenaOf struct {
	*peer
	t      testing.TB
	memory []byte
	layout struct {
		Size, Gradients int
		Tensors         []struct {
			Name                string
			Parameter, Gradient int
		}
		LearningRate float64 `json:"learning_rate"`
	}
	seq int
}

func (p *peer) open(t testing.TB, elements int) *arenaOf {
	t.Helper()
	a, err := p.try("ps_open", map[string]any{
		"tensors":   []any{map[string]any{"name": "w", "shape": []int{elements}, "dtype": "float32"}, map[string]any{"name": "b", "shape": []int{}, "dtype": "float32"}},
		"optimizer": map[string]any{"kind": "sgd", "learning_rate": 0.5},
	})
	if err != nil {
		t.Fatal(err)
	}
	if !a.FD || len(p.fds) != 1 {
		t.Fatalf("expected a descriptor, found %s", a.raw)
	}
	o := &arenaOf{peer: p, t: t}
	if err := json.Unmarshal(a.raw, &o.layout); err != nil {
		t.Fatal(err)
	}
	if err := unix.Ftruncate(p.fds[0], 0); err == nil {
		t.Error("the size of the arena can be changed")
	}
	if o.memory, err = unix.Mmap(p.fds[0], 0, o.layout.Size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		t.Fatal(err)
	}
	unix.Close(p.fds[0])
	p.fds = nil
	t.Cleanup(func() { _ = unix.Munmap(o.memory) })
	return o
}

func (o *arenaOf) fill(begin, end int, value float32) {
	for at := begin; at < end; at += 4 {
		binary.LittleEndian.PutUint32(o.memory[at:], math.Float32bits(value))
	}
}

func (o *arenaOf) want(value float32) {
	o.t.Helper()
	for _, x := range o.layout.Tensors {
		if got := math.Float32frombits(binary.LittleEndian.Uint32(o.memory[x.Parameter:])); got != value {
			o.t.Errorf("parameter %s: expected %v, found %v", x.Name, value, got)
		}
	}
}

func (o *arenaOf) operation(op string) (*answer, error) {
	o.seq++
	return o.try(op, map[string]any{"seq": o.seq, "wait": 30})
}

func (o *arenaOf) do(op string) {
	o.t.Helper()
	if _, err := o.operation(op); err != nil {
		o.t.Fatal(err)
	}
}

// F411, F413: two trainers exchange parameters through arenas, as an SDK does: no array goes through the socket. A NaN is refused with the name of its tensor.
func TestAgentsShareParameters(t *testing.T) {
	m := lead(t, taskqueue.Options{Passes: 1})
	serveParameters(t, 2)
	first, second := begin(t, m.Addr, "a", ""), begin(t, m.Addr, "b", "")
	first.call(t, "hello", map[string]any{"version": 1})
	second.call(t, "hello", map[string]any{"version": 1})
	first.refused(t, "invalid", "expected ps_open before it", "pull", map[string]any{"seq": 1})
	first.refused(t, "invalid", "expected async, as --update-mode of the master", "ps_open", map[string]any{"mode": "sync"})
	a, b := first.open(t, 1000), second.open(t, 1000)
	if len(a.layout.Tensors) != 2 || a.layout.Tensors[1].Name != "b" || a.layout.LearningRate != 0.5 {
		t.Fatalf("layout: found %+v", a.layout)
	}
	first.refused(t, "invalid", "one model in a session", "ps_open", map[string]any{
		"tensors": []any{map[string]any{"name": "w", "dtype": "float32"}}, "optimizer": map[string]any{"kind": "adam"},
	})
	a.fill(0, a.layout.Gradients, 4)
	a.do("ps_init")
	b.do("ps_init")
	b.want(4)
	a.fill(a.layout.Gradients, a.layout.Size, 2)
	a.do("push_pull")
	a.want(3)
	b.do("pull")
	b.want(3)

	a.fill(a.layout.Tensors[1].Gradient, a.layout.Tensors[1].Gradient+4, float32(math.NaN()))
	a.seq++
	a.refused(t, "invalid", `gradient "b": element 0 is NaN`, "push_pull", map[string]any{"seq": a.seq})
	a.fill(a.layout.Gradients, a.layout.Size, 2)
	a.do("push_pull")
	a.want(2)

	// A request that was given up, and its repetition.
	a.seq++
	a.send("push", map[string]any{"seq": a.seq})
	a.seq--
	a.do("push")
	a.do("pull")
	a.want(1)
	first.call(t, "close", nil)
	if code, err := first.wait(); code != 0 || err != nil {
		t.Errorf("after close: expected exit code 0, found %d, %v", code, err)
	}
}

// A killed agent, or another one of the same trainer: the next agent has the parameters of the servers, and its pushes count.
func TestNextAgentContinuesWithTheParameters(t *testing.T) {
	m := lead(t, taskqueue.Options{Passes: 1})
	serveParameters(t, 1)
	first := begin(t, m.Addr, "a", "")
	first.call(t, "hello", map[string]any{"version": 1})
	a := first.open(t, 10)
	a.fill(0, a.layout.Gradients, 4)
	a.do("ps_init")
	a.fill(a.layout.Gradients, a.layout.Size, 2)
	a.do("push_pull")
	kill(t, first.cmd.Process.Pid)
	second := begin(t, m.Addr, "a", "")
	second.call(t, "hello", map[string]any{"version": 1})
	b := second.open(t, 10)
	b.do("ps_init")
	b.want(3)
	b.fill(b.layout.Gradients, b.layout.Size, 2)
	b.do("push_pull")
	b.want(2)
}

// cutSteps are parameter servers that take cuts immediately.
type cutSteps struct{ pscontrol.None }

func (cutSteps) States(context.Context) ([]pscontrol.ServerState, error) {
	return []pscontrol.ServerState{{Present: true, Ready: true, Epoch: 1, KeepsCheckpoints: true}}, nil
}
func (cutSteps) Rollback(context.Context, uint64, uint32, []byte, []byte) error { return nil }
func (cutSteps) CommitStep(context.Context, taskqueue.Step) error               { return nil }
func (cutSteps) SetAt(set []byte) (at pscontrol.SetAt, err error) {
	_, err = fmt.Sscanf(string(set), "set %d", &at.Number)
	return at, err
}
func (cutSteps) Begin(_ context.Context, of pscontrol.CutRequest) (pscontrol.Cut, error) {
	return plainCut(of.Number(0)), nil
}

type plainCut uint64

func (c plainCut) Number() uint64 { return uint64(c) }
func (c plainCut) Write(context.Context, pscontrol.About) ([]byte, error) {
	return fmt.Appendf(nil, "set %d", c), nil
}
func (plainCut) Abort(context.Context) error                { return nil }
func (plainCut) Prune(context.Context, int, []uint64) error { return nil }

// F414: cuts are complete while one trainer waits for a task and another one is between two batches.
func TestAgentStopsForCuts(t *testing.T) {
	store := etcdtest.Store(t)
	config := master.Config{Sync: true, Queue: taskqueue.Options{Passes: 1, ExplicitCommit: true, Cuts: true}}
	m := mastertest.StandBy(t, store, config, cutSteps{}, pscontrol.Config{CheckpointEvery: pscontrol.Cadence{Time: 50 * time.Millisecond}, CheckpointKeep: 1})
	m.AwaitLeading()
	m.Register(1)
	set := func() string {
		value, _, err := store.Value(t.Context(), pscontrol.LatestSetKey)
		if err != nil {
			t.Fatal(err)
		}
		return string(value)
	}
	a, b := begin(t, m.Addr, "a", ""), begin(t, m.Addr, "b", "")
	if h := a.call(t, "hello", map[string]any{"version": 1}); h.Explicit || !strings.Contains(string(h.raw), `"cuts":true`) {
		t.Errorf("expected a job with cuts, without explicit commits of trainers, found %s", h.raw)
	}
	b.call(t, "hello", map[string]any{"version": 1})
	task := a.call(t, "next", map[string]any{"wait": 20}).Tasks[0].ID
	waited := make(chan error, 1)
	go func() {
		for {
			r, err := b.await(b.send("next", map[string]any{"wait": 0.2}))
			if err == nil && (r.Error != nil || r.Over == "" && r.Wait != "task") {
				err = fmt.Errorf("expected no task, found %s", r.raw)
			}
			if err != nil || r.Over != "" {
				waited <- err
				return
			}
		}
	}()
	for last, cuts := set(), 0; cuts < 3 && len(waited) == 0; { // b waits during one of them
		a.post(0, "used", map[string]any{"used": [][2]int{{task, 4}}})
		a.call(t, "boundary", map[string]any{"wait": 20})
		if now := set(); now != last {
			last, cuts = now, cuts+1
		}
	}
	a.post(0, "used", map[string]any{"used": [][2]int{{task, 10}}})
	a.post(0, "finish", map[string]any{"finished": []int{task}})
	for over := ""; over == "" && len(waited) == 0; {
		over = a.call(t, "next", map[string]any{"wait": 1}).Over
	}
	if err := <-waited; err != nil {
		t.Errorf("a trainer that waits for a task during cuts: %v", err)
	}
}

// BenchmarkPushPull compares an exchange through the agent with one of the Go client in this process, of 100 MB of parameters and as much of gradients.
func BenchmarkPushPull(b *testing.B) {
	const elements = 25_000_000
	addrs := serveParameters(b, 2)
	b.Run("client", func(b *testing.B) {
		c, err := params.Connect(b.Context(), params.Config{
			Addrs: func(context.Context) ([]string, error) { return addrs, nil }, Mode: params.Async, Optimizer: params.Optimizer{Kind: params.SGD, LearningRate: 0.5},
			Ordinal: 99, Incarnation: 1, Log: quiet(),
		})
		if err != nil {
			b.Fatal(err)
		}
		defer c.Close()
		of := func() []params.Tensor {
			return []params.Tensor{{Name: "w", Shape: []int{elements}, Data: make([]float32, elements)}, {Name: "b", Shape: []int{}, Data: make([]float32, 1)}}
		}
		values, gradients := of(), of()
		if err := c.Init(b.Context(), values); err != nil {
			b.Fatal(err)
		}
		b.SetBytes(8 * elements)
		for step := uint64(1); b.Loop(); step++ {
			if _, err := c.PushPull(b.Context(), step, 1, gradients, values); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("agent", func(b *testing.B) {
		m := lead(b, taskqueue.Options{Passes: 1})
		p := begin(b, m.Addr, fmt.Sprintf("bench-%d", os.Getpid()), "")
		if _, err := p.try("hello", map[string]any{"version": 1}); err != nil {
			b.Fatal(err)
		}
		a := p.open(b, elements)
		a.do("ps_init")
		b.SetBytes(8 * elements)
		for b.Loop() {
			a.do("push_pull")
		}
	})
}
