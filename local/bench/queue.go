package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"trainmaster/taskqueue"
)

// Queue measures the rate of durable answers, for every combination of via, callers and
// tasks: each round measures each row once, and after it the raw rate.
type Queue struct {
	Setup
	Vias      []Via
	Callers   []int
	Tasks     []int
	Length    time.Duration // of one measurement
	Rounds    int
	EtcdDelay time.Duration // more rows with so much delay before etcd; 0: none
	OpenRound bool          // more rows with an open evaluation round, for each row of the real queue
}

// QueueFigures is what Queue measures. The fields of a row are medians over the rounds.
type QueueFigures struct {
	RawTxnPerS float64    `json:"raw_txn_per_s"` // median of all rows without delay
	Rounds     int        `json:"rounds"`
	Seconds    float64    `json:"seconds"` // of one measurement
	Processors int        `json:"processors"`
	Disk       Disk       `json:"disk"`
	Rows       []QueueRow `json:"rows"`
}

// QueueRow is one combination.
type QueueRow struct {
	Via         Via     `json:"via"`
	Callers     int     `json:"callers"`
	Tasks       int     `json:"tasks"`
	EtcdDelayMS float64 `json:"etcd_delay_ms"`
	OpenRound   bool    `json:"open_round,omitempty"` // an evaluation round is open, and no trainer takes its tasks
	OpsPerS     float64 `json:"ops_per_s"`
	RawTxnPerS  float64 `json:"raw_txn_per_s"`          // with a value of StateBytes
	Ratio       float64 `json:"ratio"`                  // of the two, in each round
	OverLiteral float64 `json:"over_literal,omitempty"` // OpsPerS over that of Literal, in each round
	P50MS       float64 `json:"p50_ms"`
	P99MS       float64 `json:"p99_ms"`
	OpsPerTxn   float64 `json:"ops_per_txn"`
	StateBytes  float64 `json:"state_bytes"` // of the stored state

	CPUMicrosPerOp  float64   `json:"cpu_us_per_op"` // of all processes
	CPU             CPUMicros `json:"cpu_us_per_op_of"`
	BytesPerTask    float64   `json:"bytes_per_task"`     // written to etcd's log
	PutBytesPerTask float64   `json:"put_bytes_per_task"` // keys and values of all puts
}

// CPUMicros is processor time per op. In process, the load is in the master's share.
type CPUMicros struct {
	Master float64 `json:"master"`
	Etcd   float64 `json:"etcd"`
	Load   float64 `json:"load"`
}

// rowKey is what a row is about.
type rowKey struct {
	via     Via
	callers int
	tasks   int
	delay   time.Duration
	round   bool
}

func (k rowKey) String() string {
	text := fmt.Sprintf("%s, %d callers, %d tasks", k.via, k.callers, k.tasks)
	if k.delay > 0 {
		text += fmt.Sprintf(", %v before etcd", k.delay)
	}
	if k.round {
		text += ", with an open round"
	}
	return text
}

// literalRequestBytes lets 100,000 tasks in three lists fit into one transaction.
const literalRequestBytes = 16 << 20

// etcdKey is what rows share an etcd by.
type etcdKey struct {
	literal bool
	delay   time.Duration
}

func (k rowKey) etcd() etcdKey { return etcdKey{literal: k.via.literal(), delay: k.delay} }

// keys lists the rows in the order of their measurements. Rows that are compared are adjacent.
func (q *Queue) keys() []rowKey {
	delays := []time.Duration{0}
	if q.EtcdDelay > 0 {
		delays = append(delays, q.EtcdDelay)
	}
	var keys []rowKey
	for _, delay := range delays {
		for _, tasks := range q.Tasks {
			for _, callers := range q.Callers {
				for _, via := range q.Vias {
					key := rowKey{via: via, callers: callers, tasks: tasks, delay: delay}
					keys = append(keys, key)
					if key.round = true; q.OpenRound && !via.literal() {
						keys = append(keys, key)
					}
				}
			}
		}
	}
	return keys
}

// Validate names the first field that makes no sense.
func (q *Queue) Validate() error {
	for _, via := range q.Vias {
		if !slices.Contains(Vias, via) {
			return fmt.Errorf("via: expected one of %v, found %q", Vias, via)
		}
	}
	switch {
	case len(q.Vias) == 0 || len(q.Callers) == 0 || len(q.Tasks) == 0:
		return errors.New("via, callers, tasks: expected at least one of each")
	case slices.Min(q.Callers) < 1 || slices.Min(q.Tasks) < 1:
		return errors.New("callers, tasks: expected numbers from 1")
	case q.Length <= 0 || q.Rounds < 1 || q.EtcdDelay < 0:
		return fmt.Errorf("seconds, rounds, etcd-delay: expected more than 0, 1 or more, and 0 or more; found %v, %d and %v", q.Length, q.Rounds, q.EtcdDelay)
	}
	return nil
}

// Run measures.
func (q *Queue) Run(ctx context.Context) (figures QueueFigures, err error) {
	if err := q.Validate(); err != nil {
		return figures, err
	}
	figures = QueueFigures{Rounds: q.Rounds, Seconds: q.Length.Seconds(), Processors: runtime.NumCPU()}
	if figures.Disk, err = measureDisk(q.Folder); err != nil {
		return figures, err
	}
	keys := q.keys()
	etcds := map[etcdKey]*etcdServer{}
	defer func() {
		for _, e := range etcds {
			err = errors.Join(err, e.close())
		}
	}()
	for _, key := range keys {
		if k := key.etcd(); etcds[k] == nil {
			c := etcdConfig{Delay: k.delay}
			if k.literal {
				c.MaxRequestBytes = literalRequestBytes
			}
			if etcds[k], err = startEtcd(ctx, q.Program, q.Folder, c, q.Stderr); err != nil {
				delete(etcds, k)
				return figures, err
			}
		}
	}
	samples := map[rowKey][]sample{}
	for round := range q.Rounds {
		for i, key := range keys {
			q.say("%d/%d  %v", round*len(keys)+i+1, q.Rounds*len(keys), key)
			s, err := q.measure(ctx, key, etcds[key.etcd()])
			if err != nil {
				return figures, fmt.Errorf("%v: %w", key, err)
			}
			samples[key] = append(samples[key], s)
		}
	}
	figures.summarize(keys, samples)
	return figures, nil
}

// measure measures one row once.
func (q *Queue) measure(ctx context.Context, key rowKey, etcd *etcdServer) (s sample, err error) {
	subject, err := q.subject(ctx, key, etcd.Endpoint)
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, subject.close()) }()
	raw := subject.raw()
	if err := forgetHistory(ctx, raw.client); err != nil {
		return s, err
	}
	runtime.GC() // frees the memory of the previous row
	session, err := subject.start(ctx, key.callers)
	if err != nil {
		return s, err
	}
	if s, err = q.sample(ctx, subject, session, etcd); err != nil {
		return s, errors.Join(err, session.leave(ctx))
	}
	if err := session.leave(ctx); err != nil {
		return s, err
	}
	s.raw, err = raw.rate(ctx, int(s.stateBytes), q.Length)
	return s, err
}

// sample measures a load that works.
func (q *Queue) sample(ctx context.Context, subject subject, session session, etcd *etcdServer) (sample, error) {
	before, err := readCounters(ctx, subject, etcd)
	if err != nil {
		return sample{}, err
	}
	var after counters
	var failed error
	result, err := session.measure(ctx, q.Length, func() { after, failed = readCounters(ctx, subject, etcd) })
	if err = errors.Join(err, failed); err != nil {
		return sample{}, err
	}
	return newSample(result, before, after), nil
}

// forgetHistory compacts etcd, and waits for it: it is not to happen in a measurement, and
// the database is not to grow with every row.
func forgetHistory(ctx context.Context, client *clientv3.Client) error {
	now, err := client.Get(ctx, taskqueue.StateKey, clientv3.WithCountOnly())
	if err != nil {
		return fmt.Errorf("compact etcd: %w", err)
	}
	if _, err := client.Compact(ctx, now.Header.Revision, clientv3.WithCompactPhysical()); err != nil {
		return fmt.Errorf("compact etcd: %w", err)
	}
	return nil
}
