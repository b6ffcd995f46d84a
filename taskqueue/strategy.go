package taskqueue

import (
	"encoding/json"
	"fmt"
	"math"
)

// The keys of a strategy.
const (
	StrategyKey     = "/strategy"            // Steering.Encode
	StrategyFileKey = "/strategy/file"       // Strategy.File
	StatisticsKey   = "/strategy/statistics" // Statistics
)

// Strategy is the strategy of a job: schedules of hyper-parameters, and rules that end the job. The queue asks it with each batch, and stores
// its decisions in the transaction of the batch.
type Strategy struct {
	File []byte // stored with the job
	// Begin returns the strategy with the state that Steering.Encode wrote; nil: of a job that begins with it.
	Begin func(state []byte) (Steering, error)
	// Population returns the population with the state that Population.Encode wrote; nil: of a job that begins with it. A nil function: the job
	// has no population.
	Population func(state []byte, job [16]byte) (Population, error)
}

// Steering is a strategy with its state in a job. It is a value: a change returns another one. All methods are pure.
type Steering interface {
	// Observe decides. isChanged reports that there is a decision, or that the state differs.
	Observe(o Observation) (next Steering, decisions []StrategyDecision, isChanged bool)
	Encode() []byte
	// Stopped returns why the job ends; "": it does not.
	Stopped() string
	// ForTrainers returns the hyper-parameters of training tasks. The caller must not change them.
	ForTrainers() map[string]float64
	// Rate returns the learning rate of the parameter servers, before the schedule of their optimizer, and the factor that makes it from
	// their own rate. steers is false if the strategy has none. known is false before the own rate of the servers is known: see WithRate.
	Rate() (rate, scale float32, known, steers bool)
	WithRate(own float32) Steering
	// UsesStatistics reports that a decision depends on Observation.Statistics, and UsesClock that it depends on Observation.Clock.
	UsesStatistics() bool
	UsesClock() bool
	Overview() StrategyOverview
}

// Observation is what a strategy decides by.
type Observation struct {
	Clock      Clock
	Step       uint64 // newest version of the parameters
	Passes     uint64 // of training datasets that have ended
	Statistics Statistics
	Round      *EndedRound // that this batch ends; nil: none
}

// EndedRound is an evaluation round that has ended.
type EndedRound struct {
	Number    uint64
	Figures   map[string]float64
	Trainer   string // whose own model was evaluated; "": the model of the job
	Outcome   string // why the round of a trainer has ended before its last task; "": it has not
	NotFinite string // name of a metric that is NaN or infinite; "": none
}

// StrategyDecision is a new value of a hyper-parameter, or the end of the job, with the reason.
type StrategyDecision struct {
	Parameter string  `json:"parameter,omitempty"` // "": the job ends
	Value     float64 `json:"value"`
	Reason    string  `json:"reason"`
	Step      uint64  `json:"step"`
	Passes    uint64  `json:"passes"`
	Clock     Clock   `json:"clock"`
}

// StrategyOverview is a summary of a strategy for operators.
type StrategyOverview struct {
	Parameters []HyperParameter   // by name
	Decisions  []StrategyDecision // the newest, in their order
}

// HyperParameter is the newest value of a hyper-parameter, with the reason of its last change.
type HyperParameter struct {
	Name   string
	Value  float64
	Reason string
}

// RunStats is what a trainer reports about the training of a task. Zero fields are not reported.
type RunStats struct {
	Records        int64
	Seconds        float64
	PeakMemory     int64   // bytes
	GPUUtilization float64 // 0 to 1
}

// Statistics sums what was reported with finished training tasks. A task that a rollback repeats is in it again.
type Statistics struct {
	Records    uint64  `json:"records"`               // reported, or as many as the task has
	Timed      uint64  `json:"timed,omitempty"`       // reported with seconds
	Seconds    float64 `json:"seconds,omitempty"`     // that these took
	PeakMemory int64   `json:"peak_memory,omitempty"` // the largest
	GPUSeconds float64 `json:"gpu_seconds,omitempty"` // of the tasks with a utilization
	GPUBusy    float64 `json:"gpu_busy_s,omitempty"`  // utilization x seconds
}

// Limits of one report, which keep the sums finite.
const (
	maxTaskRecords = 1 << 40
	maxTaskSeconds = 1e9
)

func (s *Statistics) add(r RunStats, recordsOfTask int64) {
	records := min(max(r.Records, 0), maxTaskRecords)
	s.PeakMemory = max(s.PeakMemory, r.PeakMemory)
	if seconds := min(r.Seconds, maxTaskSeconds); seconds > 0 {
		s.Timed += uint64(records)
		s.Seconds += seconds
		if busy := min(r.GPUUtilization, 1); busy > 0 {
			s.GPUSeconds += seconds
			s.GPUBusy += busy * seconds
		}
	}
	if records == 0 {
		records = recordsOfTask
	}
	s.Records += uint64(records)
}

// RecordsPerSecond returns the mean speed of a trainer; NaN: no trainer has reported it.
func (s Statistics) RecordsPerSecond() float64 { return float64(s.Timed) / s.Seconds }

// GPUUtilization returns the mean, weighted by time; NaN: no trainer has reported it.
func (s Statistics) GPUUtilization() float64 { return s.GPUBusy / s.GPUSeconds }

// PeakMemoryBytes returns the largest memory; NaN: no trainer has reported it.
func (s Statistics) PeakMemoryBytes() float64 {
	if s.PeakMemory == 0 {
		return math.NaN()
	}
	return float64(s.PeakMemory)
}

// RestoreStrategy reads the stored values of StrategyKey and StatisticsKey into a new or restored queue. Without a stored state, the next
// batch stores the file and the first decisions.
func (q *Queue) RestoreStrategy(state, statistics []byte) (err error) {
	if q.opt.Strategy == nil {
		return nil
	}
	//guard:strategy-state-continues
	if q.steering, err = q.opt.Strategy.Begin(state); err != nil {
		return fmt.Errorf("%w: read %s: %w", ErrDamaged, StrategyKey, err)
	}
	if statistics != nil {
		if err := json.Unmarshal(statistics, &q.statistics); err != nil {
			return fmt.Errorf("%w: read %s: %w", ErrDamaged, StatisticsKey, err)
		}
	}
	if state == nil {
		q.storeKeys([]Write{{Key: StrategyFileKey, Value: q.opt.Strategy.File}})
		q.steeringChanged, q.dirty = true, true
	}
	return nil
}

// steer asks the strategy about the state of the batch. Its decisions take effect in the queue immediately, and are stored in the transaction of
// the batch: no answer and no effect leaves before. round is a round that the batch ends; nil: none.
func (q *Queue) steer(round *EndedRound) {
	if q.steering == nil || q.hasEnded() {
		return
	}
	q.observePopulation(round)
	o := Observation{Clock: q.clock, Step: q.model.Version, Passes: q.ClosedPasses(), Statistics: q.statistics, Round: round}
	if q.sync != nil {
		o.Step = q.sync.last.Version
	}
	seen := o
	//guard:clock-is-observed
	if !q.steering.UsesClock() {
		seen.Clock = 0
	}
	//guard:same-observation-decides-nothing
	if q.observed == nil || *q.observed != seen {
		q.observed = &seen
		q.decide(o)
	}
	q.followRate()
	//guard:strategy-ends-the-job
	if reason := q.steering.Stopped(); reason != "" {
		q.end(Ended, reason)
		q.unblock(WaitTask, WaitStep)
	}
}

// decide takes the decisions about an observation.
func (q *Queue) decide(o Observation) {
	next, decisions, isChanged := q.steering.Observe(o)
	if isChanged {
		q.steering, q.steeringChanged, q.dirty = next, true, true
	}
	for _, d := range decisions {
		if d.Parameter != "" {
			q.notice(false, "hyper-parameter changed", map[string]any{"parameter": d.Parameter, "value": d.Value, "reason": d.Reason, "step": d.Step})
		}
	}
}

// StoppedByStrategy begins the reason of a job that a rule of its strategy ended.
const StoppedByStrategy = "stopped"

// followRate makes the learning rate of the strategy the learning rate of the next update. In a synchronous job it is the rate of the next
// version: a strategy gives a repeated version the rate of the first time, so no earlier rates are kept.
func (q *Queue) followRate() {
	rate, scale, known, _ := q.steering.Rate()
	if !known {
		return
	}
	from := q.nextVersion()
	if now := q.rateAt(from); now.Number > 0 && now.Scale == scale {
		return
	}
	q.changeRate(nil, from, scale, rate)
}

// awaitsRate reports that the strategy has a learning rate for the parameter servers, and their own rate is not known yet.
func (q *Queue) awaitsRate() bool {
	if q.steering == nil {
		return false
	}
	_, _, known, steers := q.steering.Rate()
	return steers && !known
}

// AwaitsRate reports that the queue waits for OwnRate: no synchronous step is made before.
func (q *Queue) AwaitsRate() bool { return q.awaitsRate() && !q.hasEnded() }

// OwnRate reports the learning rate that the parameter servers were started with, before the schedule of their optimizer.
type OwnRate struct{ Rate float32 }

func (ev *OwnRate) apply(q *Queue) Answer {
	if !q.awaitsRate() || q.hasEnded() {
		return Answer{}
	}
	if !validScale(ev.Rate) {
		return Answer{Err: fmt.Errorf("%w: learning rate of the parameter servers: expected a number above 0, found %v", ErrBadSetting, ev.Rate)}
	}
	q.steering, q.steeringChanged, q.dirty = q.steering.WithRate(ev.Rate), true, true
	q.steer(nil)
	return Answer{}
}

// countStats adds a finished training task to the statistics.
func (q *Queue) countStats(s *set, tok Token, stats RunStats) {
	if q.steering == nil || s.kind != Training || !q.steering.UsesStatistics() {
		return
	}
	var records int64
	if s.table != nil && stats.Records <= 0 {
		records = int64(s.table.TaskRecords(s.orderOf(tok.Pass).index(tok.Position)))
	}
	q.statistics.add(stats, records)
	q.statisticsChanged, q.dirty = true, true
}

func (s Statistics) encode() []byte {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // all numbers are finite
	}
	return b
}

// strategyWrites returns the changed keys of the strategy.
func (q *Queue) strategyWrites() (writes []Write) {
	//guard:decision-stored
	if q.steeringChanged {
		writes = append(writes, Write{Key: StrategyKey, Value: q.steering.Encode()})
	}
	if q.statisticsChanged {
		writes = append(writes, Write{Key: StatisticsKey, Value: q.statistics.encode()})
	}
	q.steeringChanged, q.statisticsChanged = false, false
	return writes
}

// Steering returns the strategy with its state; nil: the job has none.
func (q *Queue) Steering() Steering { return q.steering }
