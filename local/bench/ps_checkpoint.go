package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"time"

	"gonum.org/v1/gonum/blas/blas32"

	"trainmaster/master/psclient"
	"trainmaster/master/pscontrol"
	"trainmaster/pserver/optimizer"
	"trainmaster/trainer/params"
)

// CheckpointFigures is how long the steps of one trainer on one server take while checkpoints are written, against
// those between the checkpoints.
type CheckpointFigures struct {
	P99Ratio float64         `json:"p99_ratio"` // the greatest of the rows whose trainer computes
	Rows     []CheckpointRow `json:"rows"`
}

// CheckpointRow has the figures of one optimizer and table.
type CheckpointRow struct {
	Optimizer string    `json:"optimizer"`
	TableMiB  int       `json:"table_mib"` // size of the embedding table of the step, 0: a push-pull of the model
	Computes  bool      `json:"computes"`  // before each push-pull, for as long as one takes
	Normal    StepTimes `json:"normal"`
	Beside    StepTimes `json:"beside"` // of the steps during a checkpoint
	P50Ratio  float64   `json:"p50_ratio"`
	P99Ratio  float64   `json:"p99_ratio"`

	Checkpoints int     `json:"checkpoints"`
	MiB         int     `json:"checkpoint_mib"` // parameters and state
	Seconds     float64 `json:"seconds"`        // from the cut to the manifest of the set, the median
	MBPerS      float64 `json:"mb_per_s"`       // 10^6 bytes in that time
}

// StepTimes is of steps, each a push-pull of the whole model, or a lookup and a push of rows.
type StepTimes struct {
	Steps int     `json:"steps"`
	P50MS float64 `json:"p50_ms"`
	P99MS float64 `json:"p99_ms"`
	MaxMS float64 `json:"max_ms"`
}

func newStepTimes(took []time.Duration) StepTimes {
	slices.Sort(took)
	at := func(share float64) float64 { return millis(took[min(int(share*float64(len(took))), len(took)-1)]) }
	return StepTimes{Steps: len(took), P50MS: at(0.5), P99MS: at(0.99), MaxMS: at(1)}
}

// Checkpoints measures each kind of trainer; all of p counts but what is about shards and tables.
func (p *PS) Checkpoints(ctx context.Context) (figures CheckpointFigures, err error) {
	sockets, err := os.MkdirTemp("", "master-bench-ps-") // their paths must be short
	if err != nil {
		return figures, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(sockets)) }()
	for _, kind := range []string{optimizer.SGD, optimizer.Adam} {
		for _, computes := range []bool{false, true} {
			row, err := p.checkpointRow(ctx, sockets, kind, computes, 0)
			if err != nil {
				return figures, fmt.Errorf("checkpoints, %s: %w", kind, err)
			}
			figures.add(row)
		}
	}
	if p.TableMiB > 0 {
		row, err := p.checkpointRow(ctx, sockets, optimizer.SGD, true, p.TableMiB)
		if err != nil {
			return figures, fmt.Errorf("checkpoints, table: %w", err)
		}
		figures.add(row)
	}
	return figures, nil
}

func (f *CheckpointFigures) add(row CheckpointRow) {
	f.Rows = append(f.Rows, row)
	if row.Computes {
		f.P99Ratio = max(f.P99Ratio, row.P99Ratio)
	}
}

// checkpointRow measures one kind of trainer, with a table of tableMiB if it is not 0.
func (p *PS) checkpointRow(ctx context.Context, sockets, kind string, computes bool, tableMiB int) (row CheckpointRow, err error) {
	folder, err := os.MkdirTemp(p.Folder, "master-bench-checkpoints-")
	if err != nil {
		return row, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	rule := optimizer.Config{Kind: kind, LearningRate: psOptimizer.LearningRate}
	w := &checkpointWatch{}
	defer func() { err = errors.Join(err, w.stop()) }()
	config := stepperConfig{pusherConfig: pusherConfig{Via: viaFrames, MiB: p.MiB, Optimizer: rule}, Computes: computes, TableMiB: tableMiB}
	addr, err := p.checkpointed(ctx, w, shardConfig{Via: viaFrames, Sockets: sockets, Checkpoints: filepath.Join(folder, "sets")}, config)
	if err != nil {
		return row, err
	}
	w.leader.Present = func(context.Context) ([]string, error) { return []string{addr}, nil }
	defer w.leader.Close()
	if err := w.firstSet(ctx); err != nil {
		return row, err
	}

	mib := p.MiB
	if tableMiB > 0 {
		mib = tableMiB
	}
	for run := range p.Runs {
		p.say("%d steps of %d MiB with %s between and during checkpoints (computing: %t), %d of %d", p.Steps, mib, kind, computes, run+1, p.Runs)
		if err := w.between(ctx, p.Steps); err != nil {
			return row, err
		}
		if err := w.beside(ctx, p.Steps); err != nil {
			return row, err
		}
	}
	row = CheckpointRow{Optimizer: kind, TableMiB: tableMiB, Computes: computes, Normal: newStepTimes(w.stepsBetween), Beside: newStepTimes(w.stepsBeside), Checkpoints: len(w.written)}
	row.P50Ratio, row.P99Ratio = row.Beside.P50MS/row.Normal.P50MS, row.Beside.P99MS/row.Normal.P99MS
	row.MiB = mib * (1 + len(rule.Rule().Slots()))
	row.Seconds = median(w.written, time.Duration.Seconds)
	row.MBPerS = float64(row.MiB) * (1 << 20) / 1e6 / row.Seconds
	return row, nil
}

// checkpointed starts the server and the trainer, and returns where the server is.
func (p *PS) checkpointed(ctx context.Context, w *checkpointWatch, server shardConfig, config stepperConfig) (addr string, err error) {
	if w.server, err = p.Program.start(roleShard, server, p.Stderr); err != nil {
		return "", err
	}
	if err := w.server.receive(ctx, &addr); err != nil {
		return "", err
	}
	config.Addrs = []string{addr}
	w.trainer, err = p.Program.start(roleStepper, config, p.Stderr)
	return addr, err
}

// checkpointWatch is a server, a trainer in a closed loop, and the durations of its steps.
type checkpointWatch struct {
	server, trainer *child // nil: not started
	leader          psclient.Client

	stepsBetween, stepsBeside []time.Duration
	written                   []time.Duration // what checkpoints took
}

func (w *checkpointWatch) stop() error {
	var errs []error
	for _, c := range []*child{w.trainer, w.server} {
		if c != nil {
			errs = append(errs, c.stop())
		}
	}
	return errors.Join(errs...)
}

// step waits for the end of the step that is under way.
func (w *checkpointWatch) step(ctx context.Context) (took time.Duration, err error) {
	return took, w.trainer.receive(ctx, &took)
}

// between measures n steps without a checkpoint. It skips the first step, which began during the last checkpoint.
func (w *checkpointWatch) between(ctx context.Context, n int) error {
	if _, err := w.step(ctx); err != nil {
		return err
	}
	for range n {
		took, err := w.step(ctx)
		if err != nil {
			return err
		}
		w.stepsBetween = append(w.stepsBetween, took)
	}
	return nil
}

// beside takes one checkpoint after the other, until n steps were measured.
func (w *checkpointWatch) beside(ctx context.Context, n int) error {
	for enough := len(w.stepsBeside) + n; len(w.stepsBeside) < enough; {
		done := make(chan error, 1)
		go func() { done <- w.checkpoint(ctx) }()
		var failed error
		for under := true; under; {
			select {
			case failed = <-done:
				under = false
			default:
			}
			took, err := w.step(ctx)
			if err != nil {
				if under {
					failed = <-done // ctx ended, or the calls fail
				}
				return errors.Join(err, failed)
			}
			w.stepsBeside = append(w.stepsBeside, took)
		}
		if failed != nil {
			return failed
		}
	}
	return nil
}

// checkpointsKept as a master keeps by default.
const checkpointsKept = 2

// firstSet takes the set before which the server accepts no push, when the trainer has put its parameters.
func (w *checkpointWatch) firstSet(ctx context.Context) error {
	for {
		err := w.checkpoint(ctx)
		if !errors.Is(err, pscontrol.ErrNothingToCut) {
			w.written = nil
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// checkpoint does what a leader does.
func (w *checkpointWatch) checkpoint(ctx context.Context) error {
	began := time.Now()
	cut, err := w.leader.Begin(ctx, pscontrol.CutRequest{Term: 1, Epoch: 1, Number: func(last uint64) uint64 { return last + 1 }})
	if err != nil {
		return err
	}
	if _, err := cut.Write(ctx, pscontrol.About{Job: "bench"}); err != nil {
		return err
	}
	w.written = append(w.written, time.Since(began))
	return cut.Prune(ctx, checkpointsKept, nil)
}

const roleStepper = "stepper"

// stepperConfig is a trainer that takes one step after the other, in a process of its own.
type stepperConfig struct {
	pusherConfig
	Computes bool
	TableMiB int // 0: the step is a push-pull of the model; else a lookup and a push of rows of a table of this size
}

// learned is the number of push-pulls that determine the duration of the computation.
const learned = 15

// serve reports the duration of each step after the warm-up, until its parent ends.
func (c *stepperConfig) serve(ctx context.Context, p *parent) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		p.await()
		cancel() // a step waits for a server that is gone as well
	}()
	connect := func() (step, stop func() error, err error) {
		values, grads := c.model()
		return c.connect(ctx, values, grads)
	}
	if c.TableMiB > 0 {
		connect = func() (step, stop func() error, err error) { return c.withTable(ctx) }
	}
	step, stop, err := connect()
	if err != nil {
		return err
	}
	var warm []time.Duration
	for range learned {
		began := time.Now()
		if err := step(); err != nil {
			return errors.Join(err, stop())
		}
		warm = append(warm, time.Since(began))
	}
	compute := func() {}
	if c.Computes {
		compute = computing(time.Duration(median(warm, func(d time.Duration) float64 { return float64(d) })))
	}
	for {
		began := time.Now()
		compute()
		if err := step(); ctx.Err() != nil {
			return stop()
		} else if err != nil {
			return errors.Join(err, stop())
		}
		if err := p.out.Encode(time.Since(began)); err != nil {
			return errors.Join(err, stop())
		}
	}
}

// The table in the measurements of checkpoints has rows of 256 bytes. A step looks up and pushes the rows of a batch of a small
// recommendation model, which are in every slot.
const (
	stepDim  = 64
	stepRows = 8192
)

// withTable fills a table and returns a step: the lookup of random rows and the push of their gradients.
func (c *stepperConfig) withTable(ctx context.Context) (step, stop func() error, err error) {
	client, err := params.Connect(ctx, params.Config{
		Addrs: func(context.Context) ([]string, error) { return slices.Clone(c.Addrs), nil },
		Mode:  params.Async, Optimizer: c.Optimizer, Incarnation: 1, Log: silent(),
		Tables: []params.Table{{Name: "rows", Dim: stepDim, Init: params.Uniform, Scale: 0.1}},
	})
	if err != nil {
		return nil, nil, err
	}
	t := &tableTrainer{client: client, ids: make([]int64, stepRows), values: make([]float32, stepRows*stepDim), dim: stepDim}
	rows := c.TableMiB << 20 / (4 * stepDim)
	err = client.Init(ctx, []params.Tensor{{Name: "bias", Shape: []int{1}, Data: make([]float32, 1)}})
	if err == nil {
		err = t.fill(ctx, 0, rows)
	}
	if err != nil {
		return nil, nil, errors.Join(err, client.Close())
	}
	r := rand.New(rand.NewPCG(1, 1))
	return func() error {
		for k := range t.ids {
			t.ids[k] = r.Int64N(int64(rows))
		}
		if err := t.lookup(ctx); err != nil {
			return err
		}
		return t.push(ctx)
	}, client.Close, nil
}

// computing returns work for one processor, of as much processor time as is asked for.
func computing(length time.Duration) (compute func()) {
	const elements = 1 << 13
	x := blas32.Vector{N: elements, Data: make([]float32, elements), Inc: 1}
	y := blas32.Vector{N: elements, Data: make([]float32, elements), Inc: 1}
	times := func(n int) {
		for range n {
			blas32.Axpy(1, x, y)
		}
	}
	const trial = 20_000
	began := processorTime()
	times(trial)
	n := int(trial * length / max(1, processorTime()-began))
	return func() { times(n) }
}
