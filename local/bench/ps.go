package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"

	"trainmaster/pserver"
	"trainmaster/trainer/params"
)

// PS measures the cost of parameter servers: processor time of all processes for each GB (10^9 bytes of float32) to the servers
// or back, in any encoding.
type PS struct {
	Setup
	MiB      int // of the model
	Steps    int // in a measurement during checkpoints, and the same number between checkpoints
	TableMiB int // of the embedding table in the measurements of checkpoints; 0: none
	Rows     int // of the table of embeddings while its rates are measured
	MostRows int // of the table when its memory is measured
	Runs     int // each figure is the median of that many
	Shards   []int
	Trainers []int // every number of shards is measured with every number of trainers
}

// PSFigures is what PS measures.
type PSFigures struct {
	MiB        int                `json:"mib"`
	Runs       int                `json:"runs"`
	Processors int                `json:"processors"`
	Dense      DenseFigures       `json:"dense"`
	Scaling    []ScalingFigures   `json:"scaling"`
	Checkpoint CheckpointFigures  `json:"checkpoint"`
	Optimizers []OptimizerFigures `json:"optimizers"`
	Sparse     PSTableFigures     `json:"sparse"`
}

// DenseFigures is a push-pull of the whole model between two processes, one server and one
// trainer, against what the same takes in memory and by other ways between two processes.
type DenseFigures struct {
	CPUSPerGB           float64 `json:"cpu_s_per_gb"`
	GBPerS              float64 `json:"gb_per_s"`
	LimitCPUSPerGB      float64 `json:"limit_cpu_s_per_gb"` // each direction copied twice, and SGD
	GRPCBytesCPUSPerGB  float64 `json:"grpc_bytes_cpu_s_per_gb"`
	GobFloat32CPUSPerGB float64 `json:"gob_float32_cpu_s_per_gb"`
}

// ScalingFigures is the same by servers and trainers of a process each.
type ScalingFigures struct {
	Network   string  `json:"network"` // unix or tcp
	WireDType string  `json:"wire_dtype"`
	Shards    int     `json:"shards"`
	Trainers  int     `json:"trainers"`
	GBPerS    float64 `json:"gb_per_s"` // all trainers together
	CPUSPerGB float64 `json:"cpu_s_per_gb"`
}

// Validate names what makes no sense.
func (p *PS) Validate() error {
	if p.MiB < 1 || p.Runs < 1 || p.Steps < 1 {
		return fmt.Errorf("mib, runs, steps: expected 1 or more, found %d, %d and %d", p.MiB, p.Runs, p.Steps)
	}
	if p.TableMiB < 0 {
		return fmt.Errorf("table-mib: expected 0 or more, found %d", p.TableMiB)
	}
	if err := p.table().Validate(); err != nil {
		return err
	}
	for name, counts := range map[string][]int{"shards": p.Shards, "trainers": p.Trainers} {
		for _, n := range counts {
			if n < 1 {
				return fmt.Errorf("%s: expected 1 or more of them, found %d", name, n)
			}
		}
	}
	probe, err := os.MkdirTemp(p.Folder, "master-bench-checkpoints-") // checkpoints are measured last
	if err != nil {
		return fmt.Errorf("dir %q: expected a directory that can be written: %w", cmp.Or(p.Folder, os.TempDir()), err)
	}
	return os.Remove(probe)
}

// Run measures everything.
func (p *PS) Run(ctx context.Context) (figures PSFigures, err error) {
	if err := p.Validate(); err != nil {
		return figures, err
	}
	figures = PSFigures{MiB: p.MiB, Runs: p.Runs, Processors: runtime.NumCPU(), Scaling: []ScalingFigures{}}
	folder, err := os.MkdirTemp("", "master-bench-ps-") // for the sockets, whose paths must be short
	if err != nil {
		return figures, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	if figures.Dense, err = p.dense(ctx, folder); err != nil {
		return figures, err
	}
	for _, network := range []string{"unix", "tcp"} {
		for _, dtype := range params.WireDTypes() {
			for _, shards := range p.Shards {
				for _, trainers := range p.Trainers {
					row := ScalingFigures{Network: network, WireDType: dtype, Shards: shards, Trainers: trainers}
					if err := p.scale(ctx, folder, &row); err != nil {
						return figures, err
					}
					figures.Scaling = append(figures.Scaling, row)
				}
			}
		}
	}
	if figures.Checkpoint, err = p.Checkpoints(ctx); err != nil {
		return figures, err
	}
	if figures.Optimizers, err = p.optimizers(ctx); err != nil {
		return figures, err
	}
	figures.Sparse, err = p.table().Run(ctx)
	return figures, err
}

// table measures a table of embeddings.
func (p *PS) table() *PSTable {
	return &PSTable{Setup: p.Setup, Rows: p.Rows, MostRows: p.MostRows, Batch: min(20_000, p.Rows), Runs: p.Runs}
}

// dense measures the transports in alternation.
func (p *PS) dense(ctx context.Context, folder string) (figures DenseFigures, err error) {
	figure := map[psVia]*float64{
		viaFrames: &figures.CPUSPerGB, viaMemory: &figures.LimitCPUSPerGB, viaGRPC: &figures.GRPCBytesCPUSPerGB, viaGob: &figures.GobFloat32CPUSPerGB,
	}
	rigs, costs := map[psVia]*rig{}, map[psVia][]cost{}
	defer func() {
		for _, r := range rigs {
			err = errors.Join(err, r.stop())
		}
	}()
	for _, via := range psVias {
		p.say("starting %s", via)
		r, err := p.rig(ctx, pusherConfig{Via: via, DType: params.Float32}, 1, 1, folder)
		if err != nil {
			return figures, err
		}
		rigs[via] = r
	}
	for run := range p.Runs {
		for _, via := range psVias {
			p.say("push-pull of %d MiB by %s, %d of %d", p.MiB, via, run+1, p.Runs)
			c, err := rigs[via].measure(ctx)
			if err != nil {
				return figures, err
			}
			costs[via] = append(costs[via], c)
		}
	}
	for via, f := range figure {
		*f = median(costs[via], cost.cpuPerGB)
	}
	figures.GBPerS = median(costs[viaFrames], cost.gbPerSecond)
	return figures, nil
}

// scale fills the figures of a row in.
func (p *PS) scale(ctx context.Context, folder string, row *ScalingFigures) (err error) {
	p.say("%d shards, %d trainers, %s, %s", row.Shards, row.Trainers, row.Network, row.WireDType)
	if row.Network == "tcp" {
		folder = pserver.SocketOff
	}
	r, err := p.rig(ctx, pusherConfig{Via: viaFrames, DType: params.WireDType(row.WireDType)}, row.Shards, row.Trainers, folder)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.stop()) }()
	var costs []cost
	for range p.Runs {
		c, err := r.measure(ctx)
		if err != nil {
			return err
		}
		costs = append(costs, c)
	}
	row.GBPerS, row.CPUSPerGB = median(costs, cost.gbPerSecond), median(costs, cost.cpuPerGB)
	return nil
}

// cost is what moving some bytes took.
type cost struct {
	bytes     int64
	cpu, time time.Duration
}

func (c cost) cpuPerGB() float64    { return c.cpu.Seconds() / (float64(c.bytes) / 1e9) }
func (c cost) gbPerSecond() float64 { return float64(c.bytes) / 1e9 / c.time.Seconds() }

// rig is servers and trainers, a process each.
type rig struct{ shards, pushers []*child }

// rig starts servers and trainers with the connections of config.
func (p *PS) rig(ctx context.Context, config pusherConfig, shards, trainers int, sockets string) (r *rig, err error) {
	r = &rig{}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.stop())
		}
	}()
	config.MiB, config.Optimizer = p.MiB, psOptimizer
	if config.Via == viaMemory {
		shards = 0
	}
	for i := range shards {
		c, err := p.Program.start(roleShard, shardConfig{Via: config.Via, MiB: p.MiB, Index: i, Sockets: sockets}, p.Stderr)
		if err != nil {
			return r, err
		}
		r.shards = append(r.shards, c)
		var addr string
		if err := c.receive(ctx, &addr); err != nil {
			return r, err
		}
		config.Addrs = append(config.Addrs, addr)
	}
	for i := range trainers {
		config.Ordinal = i
		c, err := p.Program.start(rolePusher, config, p.Stderr)
		if err != nil {
			return r, err
		}
		r.pushers = append(r.pushers, c)
	}
	for _, c := range r.pushers {
		if err := c.receive(ctx, &struct{}{}); err != nil {
			return r, err
		}
	}
	return r, nil
}

// measure has all trainers push and pull at the same time.
func (r *rig) measure(ctx context.Context) (total cost, err error) {
	before, err := r.shardTime(ctx)
	if err != nil {
		return total, err
	}
	began := time.Now()
	for _, c := range r.pushers {
		if err := c.proceed(); err != nil {
			return total, err
		}
	}
	for _, c := range r.pushers {
		var one pushed
		if err := c.receive(ctx, &one); err != nil {
			return total, err
		}
		total.bytes, total.cpu = total.bytes+one.Bytes, total.cpu+one.CPU
	}
	total.time = time.Since(began)
	after, err := r.shardTime(ctx)
	total.cpu += after - before
	return total, err
}

// shardTime is the processor time of all servers so far.
func (r *rig) shardTime(ctx context.Context) (sum time.Duration, err error) {
	for _, c := range r.shards {
		if err := c.proceed(); err != nil {
			return 0, err
		}
		var used time.Duration
		if err := c.receive(ctx, &used); err != nil {
			return 0, err
		}
		sum += used
	}
	return sum, nil
}

func (r *rig) stop() error {
	var errs []error
	for _, c := range append(r.pushers, r.shards...) {
		errs = append(errs, c.stop())
	}
	return errors.Join(errs...)
}
