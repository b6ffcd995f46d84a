package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"time"

	"trainmaster/pserver"
	"trainmaster/trainer/params"
)

const roleTable = "table"

// PSTable measures a table of embeddings with rows of 16 floats and plain SGD, on one shard in a process of its own, over one
// connection of one trainer, which is this process.
type PSTable struct {
	Setup
	Rows     int // of the table while rates are measured
	MostRows int // of the table when its memory is measured
	Batch    int // random rows in a call
	Runs     int // rates are the median of that many
}

// PSTableFigures is what PSTable measures.
type PSTableFigures struct {
	Rows       int     `json:"rows"`
	MostRows   int     `json:"most_rows"`
	Batch      int     `json:"batch"`
	LookupsPS  float64 `json:"lookups_per_s"` // rows
	UpdatesPS  float64 `json:"updates_per_s"` // rows
	LookupNS   float64 `json:"lookup_cpu_ns"` // of both processes, a row
	UpdateNS   float64 `json:"update_cpu_ns"`
	BytesOfRow float64 `json:"bytes_per_row"` // of the heap, at MostRows
	GCMillis   float64 `json:"gc_ms"`         // a forced collection in the server, at MostRows
}

const tableDim = 16

// Validate names what makes no sense.
func (p *PSTable) Validate() error {
	if p.Rows < 1 || p.MostRows < p.Rows || p.Batch < 1 || p.Runs < 1 {
		return fmt.Errorf("rows, most rows, batch, runs: expected 1 or more, and no more rows than most rows, found %d, %d, %d and %d", p.Rows, p.MostRows, p.Batch, p.Runs)
	}
	return nil
}

// Run measures everything.
func (p *PSTable) Run(ctx context.Context) (figures PSTableFigures, err error) {
	if err := p.Validate(); err != nil {
		return figures, err
	}
	figures = PSTableFigures{Rows: p.Rows, MostRows: p.MostRows, Batch: p.Batch}
	folder, err := os.MkdirTemp("", "master-bench-table-") // for the socket, whose path must be short
	if err != nil {
		return figures, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	shard, err := p.Program.start(roleTable, tableConfig{Sockets: folder}, p.Stderr)
	if err != nil {
		return figures, err
	}
	defer func() { err = errors.Join(err, shard.stop()) }()
	t, err := newTableTrainer(ctx, shard, p.Batch)
	if err != nil {
		return figures, err
	}
	defer func() { err = errors.Join(err, t.client.Close()) }()
	empty, err := t.server(ctx)
	if err != nil {
		return figures, err
	}
	p.say("filling %d rows", p.Rows)
	if err := t.fill(ctx, 0, p.Rows); err != nil {
		return figures, err
	}
	if err := p.rates(ctx, t, &figures); err != nil {
		return figures, err
	}
	p.say("filling %d rows", p.MostRows)
	if err := t.fill(ctx, p.Rows, p.MostRows); err != nil {
		return figures, err
	}
	full, err := t.server(ctx)
	if err != nil {
		return figures, err
	}
	figures.BytesOfRow = float64(full.Heap-empty.Heap) / float64(p.MostRows)
	figures.GCMillis = full.Collection.Seconds() * 1e3
	return figures, nil
}

// rates measures lookups and updates in alternation.
func (p *PSTable) rates(ctx context.Context, t *tableTrainer, figures *PSTableFigures) error {
	var lookups, updates []tableCost
	for run := range p.Runs {
		p.say("%d random rows of %d in a call, %d of %d", p.Batch, p.Rows, run+1, p.Runs)
		for costs, call := range map[*[]tableCost]func(context.Context) error{&lookups: t.lookup, &updates: t.push} {
			cost, err := t.measure(ctx, p.Rows, call)
			if err != nil {
				return err
			}
			*costs = append(*costs, cost)
		}
	}
	perSecond := func(c tableCost) float64 { return float64(c.rows) / c.time.Seconds() }
	nanos := func(c tableCost) float64 { return float64(c.cpu) / float64(c.rows) }
	figures.LookupsPS, figures.LookupNS = median(lookups, perSecond), median(lookups, nanos)
	figures.UpdatesPS, figures.UpdateNS = median(updates, perSecond), median(updates, nanos)
	return nil
}

// tableCost is what some rows took.
type tableCost struct {
	rows      int
	cpu, time time.Duration
}

// tableTrainer is the trainer, with the batch that it sends.
type tableTrainer struct {
	shard  *child
	client *params.Client
	step   uint64
	ids    []int64
	values []float32
	dim    int
}

func newTableTrainer(ctx context.Context, shard *child, batch int) (*tableTrainer, error) {
	var addr string
	if err := shard.receive(ctx, &addr); err != nil {
		return nil, err
	}
	client, err := params.Connect(ctx, params.Config{
		Addrs: func(context.Context) ([]string, error) { return []string{addr}, nil },
		Mode:  params.Async, Optimizer: params.Optimizer{Kind: params.SGD, LearningRate: 1e-3}, Incarnation: 1, Log: silent(),
		Tables: []params.Table{{Name: "rows", Dim: tableDim, Init: params.Uniform, Scale: 0.1}},
	})
	if err != nil {
		return nil, err
	}
	t := &tableTrainer{shard: shard, client: client, ids: make([]int64, batch), values: make([]float32, batch*tableDim), dim: tableDim}
	if err := client.Init(ctx, []params.Tensor{{Name: "bias", Shape: []int{1}, Data: make([]float32, 1)}}); err != nil {
		return nil, errors.Join(err, client.Close())
	}
	return t, nil
}

// tableState has the figures of a server.
type tableState struct {
	Heap       uint64        // bytes, after a collection
	Collection time.Duration // that it took
	Asked      time.Duration // processor time used when it was asked
	Answered   time.Duration // and when it answered
}

func (t *tableTrainer) server(ctx context.Context) (s tableState, err error) {
	if err := t.shard.proceed(); err != nil {
		return s, err
	}
	return s, t.shard.receive(ctx, &s)
}

// fill makes the rows from one id to another.
func (t *tableTrainer) fill(ctx context.Context, from, to int) error {
	for from < to {
		n := min(len(t.ids), to-from)
		for i := range n {
			t.ids[i] = int64(from + i)
		}
		t.step++
		if err := t.client.PushRows(ctx, "rows", t.step, 1, t.ids[:n], t.values[:n*t.dim]); err != nil {
			return err
		}
		from += n
	}
	return nil
}

func (t *tableTrainer) lookup(ctx context.Context) error {
	_, err := t.client.Lookup(ctx, "rows", t.ids, t.values, 0)
	return err
}

func (t *tableTrainer) push(ctx context.Context) error {
	t.step++
	return t.client.PushRows(ctx, "rows", t.step, 1, t.ids, t.values)
}

// tableCalls is how many calls are measured together, with ids that are made before.
const tableCalls = 40

func (t *tableTrainer) measure(ctx context.Context, rows int, call func(context.Context) error) (c tableCost, err error) {
	r := rand.New(rand.NewPCG(t.step, 1))
	batches := make([][]int64, tableCalls)
	for i := range batches {
		batches[i] = make([]int64, len(t.ids))
		for k := range batches[i] {
			batches[i][k] = r.Int64N(int64(rows))
		}
	}
	before, err := t.server(ctx)
	if err != nil {
		return c, err
	}
	cpu, began := processorTime(), time.Now()
	for _, t.ids = range batches {
		if err := call(ctx); err != nil {
			return c, err
		}
	}
	c = tableCost{rows: tableCalls * len(t.ids), cpu: processorTime() - cpu, time: time.Since(began)}
	after, err := t.server(ctx)
	c.cpu += after.Asked - before.Answered
	return c, err
}

// tableConfig is the shard in a process of its own.
type tableConfig struct {
	Sockets string // directory for the data socket
}

// serve says where it listens, and then how it is, as often as it is asked.
func (c *tableConfig) serve(ctx context.Context, p *parent) error {
	d, err := servePort(ctx, func(ctx context.Context, l net.Listener) error {
		s, err := pserver.New(pserver.Config{Registry: seat(0), Listener: l, DataSocket: c.Sockets, Log: silent()})
		if err != nil {
			return err
		}
		return s.Run(ctx)
	})
	if err != nil {
		return err
	}
	if err := p.out.Encode(d.addr); err != nil {
		return err
	}
	for p.await() {
		s := tableState{Asked: processorTime()}
		runtime.GC()
		began := time.Now()
		runtime.GC()
		s.Collection = time.Since(began)
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		s.Heap, s.Answered = m.HeapInuse, processorTime()
		if err := p.out.Encode(s); err != nil {
			return err
		}
	}
	return d.close()
}
