package taskqueue

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// PodsKey has the state of the pods of a job. The queue does not read it.
const PodsKey = "/pods"

// RingKey has the ring of a job. The queue does not read it.
const RingKey = "/ring"

// The keys of evaluation rounds.
const (
	EvaluationKey = "/evaluation"       // the decisions about rounds. The queue does not read them
	RoundKey      = "/evaluation/round" // the newest Round
	ModelKey      = "/evaluation/model" // the newest Model

	RoundRecordPrefix = "/evaluation/rounds/" // descriptions of rounds for users; the number follows, in 8 digits or more
)

// Round is an evaluation round: one pass of an evaluation dataset, with one model. At most one round is open.
type Round struct {
	Number  uint64 `json:"number"`
	Set     int    `json:"set"`
	Pass    Pass   `json:"pass"`
	Version uint64 `json:"version,omitempty"` // of the parameters
	Model   string `json:"model,omitempty"`   // name of a checkpoint set, or path of a model
	Results int    `json:"results,omitempty"` // finishes in Metrics
	// NotFinite is the name of the first metric that was refused in this round because it is NaN or infinite; "": none.
	NotFinite string `json:"not_finite,omitempty"`
	SetAside  int    `json:"set_aside,omitempty"` // tasks that were set aside in this round, without dropped tasks

	// Of a round of one trainer, which evaluates its own model.
	Trainer Ordinal `json:"trainer,omitempty"`
	Name    string  `json:"name,omitempty"`    // of the trainer
	Until   Clock   `json:"until,omitempty"`   // the round ends when no task has finished until then
	Outcome string  `json:"outcome,omitempty"` // why the round ended before its last task; "": it did not

	Metrics []byte `json:"-"` // of the counted finishes, merged by Options.Merge
}

// Encode returns the value of RoundKey: JSON, a line feed, and the metrics.
func (r Round) Encode() []byte {
	b, err := json.Marshal(r)
	if err != nil {
		panic(err) // numbers and strings always encode
	}
	return append(append(b, '\n'), r.Metrics...)
}

// DecodeRound reads the value of RoundKey. Without a value it returns the zero Round, which is none.
func DecodeRound(value []byte) (r Round, err error) {
	if value == nil {
		return r, nil
	}
	head, metrics, ok := bytes.Cut(value, []byte("\n"))
	if !ok {
		return Round{}, fmt.Errorf("%w: %s: expected JSON, a line feed and metrics", ErrDamaged, RoundKey)
	}
	if err := json.Unmarshal(head, &r); err != nil {
		return Round{}, fmt.Errorf("%w: %s: %w", ErrDamaged, RoundKey, err)
	}
	if len(metrics) > 0 {
		r.Metrics = bytes.Clone(metrics)
	}
	return r, nil
}

// Model is where a trainer has stored its model after a training task.
type Model struct {
	Path    string `json:"path"`
	Version uint64 `json:"version,omitempty"` // of the parameters
}

// MaxModelPath is the largest size of Model.Path in bytes. A longer path is ignored.
const MaxModelPath = 1024

// RestoreRound reads the stored values of RoundKey and ModelKey into a queue that Restore returned. The values may be of a later time than
// the state. A round that the state does not have is dropped. Results that the state does not have are dropped, with all results of the round:
// their tasks are dispatched again, and the round ends without figures if others are not.
func (q *Queue) RestoreRound(round, model []byte) error {
	r, err := DecodeRound(round)
	if err != nil {
		return err
	}
	if r.Number > 0 && r.Set >= 0 && r.Set < len(q.sets) && q.sets[r.Set].kind == Evaluation && r.Pass > 0 && r.Pass <= q.sets[r.Set].pass {
		//guard:later-results-dropped
		if p := q.sets[r.Set].openPass(r.Pass); p != nil && r.Results > p.counted {
			r.Results, r.Metrics, r.NotFinite = 0, nil, ""
			if p.counted > 0 {
				r.Outcome = "its results are of a later time than the restored state"
			}
		}
		q.round = r
	}
	if model != nil {
		if err := json.Unmarshal(model, &q.model); err != nil {
			return fmt.Errorf("%w: %s: %w", ErrDamaged, ModelKey, err)
		}
	}
	return nil
}

// Round returns the newest evaluation round, and whether it is open. Number 0: there is none.
func (q *Queue) Round() (r Round, open bool) {
	return q.round, q.round.Number > 0 && q.sets[q.round.Set].openPass(q.round.Pass) != nil
}

// IsOpen reports whether a pass of a dataset is open.
func (q *Queue) IsOpen(set int) bool { return len(q.sets[set].open) > 0 }

// Model returns the model of the newest training result that has one.
func (q *Queue) Model() Model { return q.model }

// PassesDone reports whether all training and prediction datasets have ended. With Options.HoldEnd, EndJob ends the job then.
func (q *Queue) PassesDone() bool { return q.passesDone() }

// ClosedPasses returns the number of passes of training datasets that have ended.
func (q *Queue) ClosedPasses() (n uint64) {
	for _, s := range q.sets {
		if s.kind == Training {
			n += uint64(s.pass) - uint64(len(s.open))
		}
	}
	return n
}

// BeginRound opens a pass of an evaluation dataset for a round, and stores the decision with it. If the round is open, it changes nothing.
// Answer.Token has the dataset and the open pass. Tasks that were set aside in earlier rounds are in the round again, except dropped tasks. If there
// are more than maxReturned, some of them are returned, and Answer.Kind is AnswerWait: the event must be repeated.
type BeginRound struct {
	Set     int
	Number  uint64 // of the round
	Version uint64 // of the parameters
	Model   string
	Trainer string    // name of the trainer whose model it is, instead of Version and Model; "": none
	With    StoreKeys // in the same transaction
}

// Errors of rounds.
var (
	// ErrNotEvaluation is returned for a round of another kind of dataset.
	ErrNotEvaluation = errors.New("dataset is not for evaluation")
	// ErrRoundOpen is returned for a round while another one is open.
	ErrRoundOpen = errors.New("another evaluation round is open")
	// ErrBadMetrics is returned for a finish whose metrics cannot be merged into its round.
	ErrBadMetrics = errors.New("invalid metrics")
)

func (ev *BeginRound) apply(q *Queue) Answer {
	switch {
	case ev.Set < 0 || ev.Set >= len(q.sets):
		return Answer{Err: fmt.Errorf("%w: expected a dataset below %d, found %d", ErrBadSet, len(q.sets), ev.Set)}
	case q.sets[ev.Set].kind != Evaluation:
		return Answer{Err: fmt.Errorf("%w: dataset %d (%s) is for %s", ErrNotEvaluation, ev.Set, q.sets[ev.Set].name, q.sets[ev.Set].kind)}
	case q.hasEnded():
		return Answer{Err: fmt.Errorf("%w: it is %s", ErrJobOver, q.status)}
	}
	s := q.sets[ev.Set]
	isOpen := func(s *set) bool { return s.kind == Evaluation && len(s.open) > 0 }
	if slices.ContainsFunc(q.sets, isOpen) && (!isOpen(s) || q.round.Number != ev.Number) {
		return Answer{Err: fmt.Errorf("%w: round %d", ErrRoundOpen, q.round.Number)}
	}
	if !isOpen(s) {
		round := Round{Number: ev.Number, Set: s.id, Version: ev.Version, Model: ev.Model}
		if ev.Trainer != "" {
			if err := q.MayEvaluate(ev.Trainer); err != nil {
				return Answer{Err: err}
			}
			round.Trainer, round.Name = q.byID[ev.Trainer].ordinal, ev.Trainer
		}
		//guard:round-has-all-tasks
		if !q.returnAside(s) {
			return Answer{Kind: AnswerWait}
		}
		q.openNext(s)
		round.Pass = s.pass
		q.setRound(round)
		q.continueOwnRound()
		//guard:round-with-its-decision
		ev.With.apply(q)
		q.unblock(WaitTask)
		q.advance(s)
	}
	return Answer{Token: Token{Epoch: q.epoch, Kind: s.kind, Dataset: s.id, Pass: s.pass}}
}

// maxReturned is the number of tasks that one event returns: each of them deletes a key.
const maxReturned = 32

// returnAside takes the tasks of a dataset without an open pass out of the list of tasks that are set aside, except dropped tasks. It reports
// whether it has taken all.
func (q *Queue) returnAside(s *set) bool {
	n := 0
	for _, a := range s.sortedAside() {
		switch {
		case a.dropped:
			continue
		case n == maxReturned:
			return false
		}
		n++
		q.ledger.retried(s.id, a.index)
		q.leaveAside(s, a, a.pass)
	}
	return true
}

// noteSetAside keeps the number of tasks that a round ends without.
func (q *Queue) noteSetAside(s *set, p Pass) {
	if q.round.Number == 0 || q.round.Set != s.id || q.round.Pass != p {
		return
	}
	next := q.round
	for _, a := range s.aside {
		if a.missing(p) && !a.dropped {
			next.SetAside++
		}
	}
	if next.SetAside > 0 {
		q.setRound(next)
	}
}

// setRound changes the stored round.
func (q *Queue) setRound(r Round) { q.round, q.roundChanged, q.dirty = r, true, true }

// EndJob ends the job before its last pass, or after it with Options.HoldEnd, and stores the decision with it.
type EndJob struct {
	Failed bool   // the job has failed
	Reason string // "": the passes are done
	With   StoreKeys
}

func (ev *EndJob) apply(q *Queue) Answer {
	if q.hasEnded() {
		return Answer{Err: fmt.Errorf("%w: it is %s", ErrJobOver, q.status)}
	}
	q.storeKeys(ev.With.Writes)
	status := Ended
	if ev.Failed {
		status = Failed
	}
	q.end(status, ev.Reason)
	q.unblock(WaitTask, WaitStep)
	return Answer{}
}

// merges reports whether the metrics of a finish belong to the open round.
func (q *Queue) merges(tok Token, metrics []byte) bool {
	return len(metrics) > 0 && q.opt.Merge != nil && q.round.Number > 0 && tok.Dataset == q.round.Set && tok.Pass == q.round.Pass
}

// checkMetrics returns an error if the metrics of results that will count cannot be merged, before anything is changed.
func (q *Queue) checkMetrics(results ...Result) (err error) {
	merged := q.round.Metrics
	for _, r := range results {
		if r.Error != "" || !q.merges(r.Token, r.Metrics) {
			continue
		}
		if _, _, status := q.locate(r.Token); status != Counted {
			continue
		}
		//guard:metrics-checked-before-change
		if merged, err = q.opt.Merge(merged, r.Metrics); err != nil {
			return fmt.Errorf("%w: task %v: %w", ErrBadMetrics, r.Token, err)
		}
	}
	return nil
}

// keepOutcome keeps what came with a finish that counts: metrics of an evaluation task, or the model of a training task.
func (q *Queue) keepOutcome(kind Kind, r *Result) {
	switch {
	case q.merges(r.Token, r.Metrics):
		merged, err := q.opt.Merge(q.round.Metrics, r.Metrics)
		if err != nil { // checkMetrics has refused it
			return
		}
		next := q.round
		next.Metrics = merged
		next.Results++
		q.setRound(next)
	case kind == Training && r.Model.Path != "" && len(r.Model.Path) <= MaxModelPath && r.Model != q.model:
		q.model, q.modelChanged = r.Model, true
		q.raise(ModelStored{r.Model})
	}
}

// RefuseMetric notes that a metric of a dispatched task of the open round is not finite. The result is refused: the task stays dispatched.
type RefuseMetric struct {
	Token Token
	Task  TaskID // instead of Token; 0: none
	Name  string
}

func (ev *RefuseMetric) apply(q *Queue) Answer {
	tok := ev.Token
	if ev.Task != 0 {
		tok, _ = q.tokenOf(ev.Task)
	}
	q.noteNotFinite(tok, ev.Name)
	return Answer{}
}

// noteNotFinite keeps the name of the first metric of the open round that is not finite.
func (q *Queue) noteNotFinite(tok Token, name string) {
	if name == "" || q.round.Number == 0 || q.round.NotFinite != "" || tok.Dataset != q.round.Set || tok.Pass != q.round.Pass {
		return
	}
	if _, _, status := q.locate(tok); status == Counted {
		next := q.round
		next.NotFinite = clip(name)
		q.setRound(next)
	}
}

func (m Model) encode() []byte {
	b, err := json.Marshal(m)
	if err != nil {
		panic(err) // numbers and strings always encode
	}
	return b
}

// roundWrites returns the changed keys of rounds.
func (q *Queue) roundWrites() (writes []Write) {
	if q.roundChanged {
		writes = append(writes, Write{Key: RoundKey, Value: q.round.Encode()})
	}
	if q.modelChanged {
		writes = append(writes, Write{Key: ModelKey, Value: q.model.encode()})
	}
	q.roundChanged, q.modelChanged = false, false
	return writes
}
