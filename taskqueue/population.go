package taskqueue

import (
	"errors"
	"fmt"
	"maps"
	"slices"
)

// PopulationKey holds the state of the population of a job: Population.Encode.
const PopulationKey = StrategyKey + "/population"

// Population is the population-based training of a job: each trainer has a model of its own. It selects the models to evaluate, the trainers that
// continue with the model of another trainer, and the values of their hyper-parameters. The queue asks it with each
// batch, and stores its state in the transaction of the batch. It is a value: a change returns another value. All methods are pure.
type Population interface {
	// Observe decides. isChanged reports that the state differs.
	Observe(o PopulationObservation) (next Population, decisions []PopulationDecision, isChanged bool)
	// Dispatched names a training task that is dispatched to a trainer, and the tasks that the trainer has besides it. A model that the
	// trainer has to receive comes with the first such task, until the trainer does not have this task any more.
	Dispatched(trainer string, task Token, others []Token) (next Population, isChanged bool)
	// Finished names a training task that counts, with its result. trainer is who reports it; "": not known.
	Finished(trainer string, r *Result) (next Population, isChanged bool)
	// ForTask returns the values by which a trainer trains a task, and the model that it begins the task with. The caller must not change
	// the map.
	ForTask(trainer string, task Token) (values map[string]float64, from ModelSource)
	// Wanted returns the next trainer to evaluate, and the number of the generation; "": none.
	Wanted() (trainer string, generation uint64)
	// Ranking returns the evaluated trainers, the best first.
	Ranking() []string
	Encode() []byte
	Overview() PopulationOverview
}

// PopulationObservation is what a population decides by.
type PopulationObservation struct {
	Clock    Clock
	Passes   uint64      // of training datasets that have ended
	Done     bool        // all passes have ended
	Trainers []Peer      // by their ordinals
	Round    *EndedRound // that this batch ends; nil: none
}

// Peer is a trainer with a session, which is not drained.
type Peer struct {
	ID          string
	Ordinal     Ordinal
	Incarnation uint64
	Address     string // of its service TrainerControl, "ip:port"; "": it has none
}

// ModelSource is where a trainer gets a model. The zero value is none: the trainer continues with its own model.
type ModelSource struct {
	Path    string  // where a trainer has stored the model; "": it is copied
	Address string  // "ip:port" of the service TrainerControl of the trainer that has the model
	Ordinal Ordinal // of this trainer
}

// PopulationDecision is the decision that a trainer continues with the model of another one.
type PopulationDecision struct {
	Generation uint64 `json:"generation"`
	Trainer    string `json:"trainer"`
	From       string `json:"from"`
	Reason     string `json:"reason"`
	Clock      Clock  `json:"clock"`
}

// PopulationOverview is a summary of a population for operators.
type PopulationOverview struct {
	Generation uint64
	Open       bool // trainers of the generation are still to be evaluated
	Figure     string
	Members    []PopulationMember   // by name
	Decisions  []PopulationDecision // the newest, in their order
}

// PopulationMember is a trainer of a population.
type PopulationMember struct {
	Trainer          string
	Values           map[string]float64
	Figure           *float64 // newest; nil: none
	FigureGeneration uint64   // of Figure
	From             string   // whose model it has continued with; "": of no other trainer
	FromGeneration   uint64
	Next             string // whose model it receives with a task; "": no other trainer's
	Note             string // why it has no figure of the newest generation, or why it has kept its model; "": neither
}

// RestorePopulation reads the stored value of PopulationKey into a new or restored queue.
func (q *Queue) RestorePopulation(state []byte) (err error) {
	if q.opt.Strategy == nil || q.opt.Strategy.Population == nil {
		return nil
	}
	//guard:population-continues
	if q.population, err = q.opt.Strategy.Population(state, q.jobID); err != nil {
		return fmt.Errorf("%w: read %s: %w", ErrDamaged, PopulationKey, err)
	}
	return nil
}

// observePopulation asks the population about the state of the batch. round is a round that the batch ends; nil: none.
func (q *Queue) observePopulation(round *EndedRound) {
	if q.population == nil {
		return
	}
	o := PopulationObservation{Clock: q.clock, Passes: q.ClosedPasses(), Done: q.passesDone(), Round: round}
	for _, t := range q.sortedTrainers() {
		if !t.gone && !t.plain && !t.draining {
			o.Trainers = append(o.Trainers, Peer{t.id, t.ordinal, t.incarnation, t.control})
		}
	}
	next, decisions, isChanged := q.population.Observe(o)
	if !isChanged {
		return
	}
	q.setPopulation(next)
	for _, d := range decisions {
		q.notice(false, "trainer receives the model of another one", map[string]any{"trainer": d.Trainer, "from": d.From, "generation": d.Generation, "reason": d.Reason})
	}
	wanted, _ := next.Wanted()
	q.raise(EvaluationWanted{wanted})
}

func (q *Queue) setPopulation(p Population) {
	q.population, q.populationChanged, q.dirty = p, true, true
}

// EvaluationWanted follows a decision of the population. It is not outstanding in a new term: the component begins with Queue.WantedRound.
type EvaluationWanted struct{ Trainer string } // to evaluate next; "": none

// Key implements Effect.
func (EvaluationWanted) Key() EffectKey { return EffectKey{Kind: OnEvaluationWanted} }

// WantedRound returns the next trainer to evaluate for the population, and the generation; "": none.
func (q *Queue) WantedRound() (trainer string, generation uint64) {
	if q.population == nil || q.hasEnded() {
		return "", 0
	}
	return q.population.Wanted()
}

// ErrOwnModels is returned for a round of the model of a job with a population.
var ErrOwnModels = errors.New("each trainer of the population has a model of its own")

// HasPopulation reports that each trainer of the job has a model of its own.
func (q *Queue) HasPopulation() bool { return q.population != nil }

// Population returns the population of the job; nil: it has none.
func (q *Queue) Population() Population { return q.population }

// bindModel lets the model that t has to receive come with a task that is dispatched to t.
func (q *Queue) bindModel(t *trainer, task Token) {
	if q.population == nil || t.plain || task.Kind != Training {
		return
	}
	var others []Token
	for _, e := range t.holds {
		if tok := q.token(e, e.holderOf(t).attempt); tok != task {
			others = append(others, tok)
		}
	}
	if next, isChanged := q.population.Dispatched(t.id, task, others); isChanged {
		q.setPopulation(next)
	}
}

// finishInPopulation passes a training task that counts to the population.
func (q *Queue) finishInPopulation(by *trainer, kind Kind, r *Result) {
	if q.population == nil || kind != Training {
		return
	}
	name := ""
	if by != nil {
		name = by.id
	}
	//guard:received-model-comes-once
	if next, isChanged := q.population.Finished(name, r); isChanged {
		q.setPopulation(next)
	}
}

// answerMember adds the values of a trainer, and the model that it receives, to the answer with a training task.
func (q *Queue) answerMember(e *entry, attempt Attempt, a *Answer) {
	if q.population == nil {
		return
	}
	at := slices.IndexFunc(e.holders[:e.holderCount], func(h holder) bool { return h.attempt == attempt })
	if at < 0 {
		return
	}
	values, from := q.population.ForTask(e.holders[at].trainer.id, a.Token)
	all := maps.Clone(values)
	maps.Copy(all, a.HyperParameters)
	a.HyperParameters, a.From = all, from
}

// maySave reports whether the population lets t save the model of the job: the best trainer that has a session saves it. After it has left,
// no other trainer replaces its model.
func (q *Queue) maySave(t *trainer) bool {
	if q.population == nil {
		return true
	}
	//guard:saved-model-kept
	if q.modelSaved {
		return false
	}
	for _, id := range q.population.Ranking() {
		if best := q.byID[id]; best != nil && !best.gone {
			//guard:best-trainer-saves
			return best == t
		}
	}
	return true
}

// populationWrites returns the changed key of the population.
func (q *Queue) populationWrites() (writes []Write) {
	//guard:replacement-stored
	if q.populationChanged {
		writes = append(writes, Write{Key: PopulationKey, Value: q.population.Encode()})
	}
	q.populationChanged = false
	return writes
}
