package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/pprof"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"trainmaster/local/bench/load"
)

// Recovery measures how long a new leader takes from the lock to its first answer.
type Recovery struct {
	Setup
	Tasks   int
	Rounds  int
	Profile string // file for a profile of the last recovering process; "": none
}

// RecoveryFigures is what Recovery measures; medians over the rounds.
type RecoveryFigures struct {
	Tasks           int     `json:"tasks"`
	Seconds         float64 `json:"seconds"`       // from the lock won to the first dispatched task
	WholeSeconds    float64 `json:"whole_seconds"` // from the start of the process
	CPUSeconds      float64 `json:"cpu_seconds"`   // of the process, until that answer
	HeapBytes       int64   `json:"heap_bytes"`    // live, after that answer
	HeapPeakBytes   int64   `json:"heap_peak_bytes"`
	EtcdBytes       int64   `json:"etcd_bytes"` // keys and values of the job in etcd
	RegisterSeconds float64 `json:"register_seconds"`
	Rounds          int     `json:"rounds"`
	Processors      int     `json:"processors"`
	Disk            Disk    `json:"disk"`
}

// Validate returns an error if a number is not positive.
func (r *Recovery) Validate() error {
	if r.Tasks < 1 || r.Rounds < 1 {
		return errors.New("--tasks and --rounds must be 1 or more")
	}
	return nil
}

// Run registers a dataset and recovers it.
func (r *Recovery) Run(ctx context.Context) (figures RecoveryFigures, err error) {
	if err := r.Validate(); err != nil {
		return figures, err
	}
	figures = RecoveryFigures{Tasks: r.Tasks, Rounds: r.Rounds, Processors: runtime.NumCPU()}
	if figures.Disk, err = measureDisk(r.Folder); err != nil {
		return figures, err
	}
	etcd, err := startEtcd(ctx, r.Program, r.Folder, etcdConfig{}, r.Stderr)
	if err != nil {
		return figures, err
	}
	defer func() { err = errors.Join(err, etcd.close()) }()
	r.say("registering %d tasks", r.Tasks)
	if err := r.register(ctx, etcd.Endpoint, &figures); err != nil {
		return figures, err
	}
	var rounds []recovered
	for i := range r.Rounds {
		r.say("recovering, %d of %d", i+1, r.Rounds)
		one, err := r.recover(ctx, etcd.Endpoint)
		if err != nil {
			return figures, err
		}
		rounds = append(rounds, one)
	}
	of := func(f func(recovered) float64) float64 { return median(rounds, f) }
	figures.Seconds = of(func(r recovered) float64 { return r.Seconds })
	figures.WholeSeconds = of(func(r recovered) float64 { return r.WholeSeconds })
	figures.CPUSeconds = of(func(r recovered) float64 { return r.CPUSeconds })
	figures.HeapBytes = int64(of(func(r recovered) float64 { return r.HeapBytes }))
	figures.HeapPeakBytes = int64(of(func(r recovered) float64 { return r.HeapPeakBytes }))
	return figures, nil
}

// register stores the dataset like ReportDataset, and dispatches some tasks.
func (r *Recovery) register(ctx context.Context, endpoint string, figures *RecoveryFigures) error {
	began := time.Now()
	s, err := startSite(ctx, endpoint, r.Tasks, false)
	if err != nil {
		return err
	}
	figures.RegisterSeconds = time.Since(began).Seconds()
	err = firstAnswer(ctx, s)
	if err == nil {
		figures.EtcdBytes, err = storedBytes(ctx, s)
	}
	return errors.Join(err, s.close())
}

// storedBytes is what the job's keys and values in etcd come to.
func storedBytes(ctx context.Context, s *site) (total int64, err error) {
	client, prefix := s.store.Client(), s.store.Prefix()+"/"
	answer, err := client.Get(ctx, prefix, clientv3.WithPrefix())
	if err != nil {
		return 0, fmt.Errorf("read all keys of the job: %w", err)
	}
	for _, kv := range answer.Kvs {
		total += int64(len(kv.Key) + len(kv.Value))
	}
	return total, nil
}

// firstAnswer joins as a trainer and gets a task.
func firstAnswer(ctx context.Context, s *site) error {
	t := load.InProcess(s.Master, "first")
	if err := t.Join(ctx); err != nil {
		return err
	}
	_, err := t.Op(ctx)
	return err
}

const roleRecovery = "recovery"

// recoveryConfig is a master that recovers, in a process of its own.
type recoveryConfig struct {
	Endpoint string
	Tasks    int
	Profile  string
}

// recovered is the reply of the process.
type recovered struct {
	Seconds, WholeSeconds, CPUSeconds float64
	HeapBytes, HeapPeakBytes          float64
}

func (c *recoveryConfig) serve(ctx context.Context, p *parent) error {
	if c.Profile != "" {
		file, err := os.Create(c.Profile)
		if err != nil {
			return err
		}
		defer file.Close()
		if err := pprof.StartCPUProfile(file); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	began := time.Now()
	s, err := startSite(ctx, c.Endpoint, c.Tasks, false)
	if err != nil {
		return err
	}
	if err := firstAnswer(ctx, s); err != nil {
		return errors.Join(err, s.close())
	}
	answered := time.Now()
	one := recovered{
		Seconds:      answered.Sub(s.store.lock.Load().won).Seconds(),
		WholeSeconds: answered.Sub(began).Seconds(),
		CPUSeconds:   processorTime().Seconds(),
	}
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	one.HeapPeakBytes = float64(memory.HeapSys)
	runtime.GC()
	runtime.ReadMemStats(&memory)
	one.HeapBytes = float64(memory.HeapAlloc)
	return errors.Join(p.out.Encode(one), s.close())
}

// recover starts a fresh process and returns what it found.
func (r *Recovery) recover(ctx context.Context, endpoint string) (one recovered, err error) {
	process, err := r.Program.start(roleRecovery, recoveryConfig{Endpoint: endpoint, Tasks: r.Tasks, Profile: r.Profile}, r.Stderr)
	if err != nil {
		return one, err
	}
	defer func() { err = errors.Join(err, process.stop()) }()
	return one, process.receive(ctx, &one)
}
