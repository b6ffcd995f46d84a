package sim

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"trainmaster/master/evaluation"
	"trainmaster/master/evaluation/metric"
	"trainmaster/master/rounds"
	"trainmaster/master/strategy"
	"trainmaster/taskqueue"
)

// Histories of a population. Each trainer has a model of its own, which is its loss, and stores it after each training task. The leader evaluates the
// trainers and decides with the production code. A trainer that receives a model continues with the loss of that model, or keeps its own. The
// checks compare each commit with the rounds, and each task with the commits before it.

const populationFile = `
population:
  every: %s
  figure: "loss:min"
  replace: 0.5
  perturb: 2
  hyper-parameters:
    dropout: {min: 0.1, max: 0.9}
`

// own selects a population.
func (p *plan) own(rng *rand.Rand) {
	p.evaluate(rng)
	p.evaluateEvery = evaluation.Every{}
	p.tasks, p.options.Passes, p.options.MaxFailures = min(p.tasks, 1+rng.IntN(24)), 2+rng.IntN(6), 50
	for i := range p.habits {
		p.habits[i].hangsAfter = 0 // delays a generation by 10 minutes
		p.habits[i].evaluates = i < 3 || rng.IntN(4) > 0
		p.habits[i].plain = p.habits[i].plain && !p.habits[i].evaluates
	}
	every := []string{"1pass", "1pass,3s", "2s"}[rng.IntN(3)]
	file := fmt.Appendf(nil, populationFile, every)
	parsed, err := strategy.Parse(file)
	if err != nil {
		panic(err)
	}
	p.population, p.options.Strategy = parsed.Population, parsed.OfJob(file, false)
}

// ownModel is the model of a trainer.
type ownModel struct {
	by   string
	loss float64
}

// continues lets a trainer continue with the model that comes with its task. It returns why the trainer keeps its own model; "": it does not.
func (w *worker) continues(task *taskqueue.Task) (kept string) {
	from := w.takenFrom
	if from == (taskqueue.ModelSource{}) {
		return ""
	}
	w.world.check.population.receives(w.world, w.id, task.Token)
	model, ok := w.world.stored[from.Path]
	if !ok {
		w.world.breaks("a model that comes with a task is stored", "%s gets %+v", w.id, from)
	}
	if w.chance(0.2) {
		return "no space left"
	}
	w.own.loss = model.loss
	return ""
}

// stores trains the own model, and returns the path where it is stored.
func (w *worker) stores(path string) {
	w.own.loss *= 0.6 + 0.5*w.rng.Float64()
	w.world.stored[path] = w.own
}

// losesFigure reports whether the loss of an evaluation is not a finite number. Then the result has no metrics.
func (w *worker) losesFigure() bool {
	return w.world.plan.population != nil && w.now < w.world.plan.quiet && w.chance(0.02)
}

// addLoss adds the loss of the own model to the metrics of an evaluation task.
func (w *worker) addLoss(set *metric.Set) {
	if w.world.plan.population == nil {
		return
	}
	if err := set.AddMean("loss", w.own.loss, 1); err != nil {
		panic(err)
	}
}

// populationBook has the population as the commits have left it.
type populationBook struct {
	state   strategy.Generations
	values  map[string]map[float64]bool // committed ones by trainer.
	orders  map[receipt]uint64          // generation of the model of a task.
	counted map[string]uint64           // newest generation of a received model, by trainer.
	figures map[string]float64          // of the generation, by trainer
	decided map[uint64]int64            // term of the decisions of a generation

	decisions, received, kept int
	continued                 int // models dispatched in a later term than their decision
}

// receipt is a task of a trainer.
type receipt struct {
	trainer string
	task    taskqueue.Token
}

func newPopulationBook() *populationBook {
	return &populationBook{values: map[string]map[float64]bool{}, orders: map[receipt]uint64{}, counted: map[string]uint64{}, figures: map[string]float64{}, decided: map[uint64]int64{}}
}

func memberOf(g *strategy.Generations, id string) *strategy.Member {
	for i := range g.Members {
		if g.Members[i].ID == id {
			return &g.Members[i]
		}
	}
	return nil
}

// written checks the population that a commit leaves.
func (b *populationBook) written(w *world, req *pb.TxnRequest, next *stored, ledger []byte) {
	if w.plan.population == nil {
		return
	}
	state, err := strategy.DecodePopulation(w.etcd.keys[taskqueue.PopulationKey].GetValue())
	if err != nil {
		w.breaks("the population can be read", "%v", err)
		return
	}
	old, g := b.state, state.Generations
	b.state = g
	if g.Number != old.Number && (g.Number != old.Number+1 || old.Open && len(b.awaiting(w, &old, req)) > 0) {
		w.breaks("generations follow each other", "%d (open: %v) after %d (open: %v)", g.Number, g.Open, old.Number, old.Open)
	}
	for _, rec := range endedRounds(req) {
		if loss, ok := rec.Figures["loss"]; ok && rec.Trainer != "" {
			b.figures[rec.Trainer] = loss
		}
	}
	b.decides(w, &old, &g)
	if g.Number != old.Number {
		clear(b.figures)
	}
	finished, early := finishedTasks(ledger)
	for i := range old.Members {
		b.keepsOrder(w, next, &old, &old.Members[i], &g, finished, early)
	}
	for _, m := range g.Members {
		if b.values[m.ID] == nil {
			b.values[m.ID] = map[float64]bool{}
		}
		b.values[m.ID][m.Values["dropout"]] = true
		if o := m.Order; o != nil && o.Task != nil {
			key := receipt{m.ID, *o.Task}
			if _, ok := b.orders[key]; !ok && b.decided[o.Generation] != next.LockRevision {
				b.continued++
			}
			b.orders[key] = o.Generation
		}
	}
}

// awaiting returns the members that await an evaluation which this commit does not end.
func (b *populationBook) awaiting(w *world, g *strategy.Generations, req *pb.TxnRequest) (ids []string) {
	for _, m := range g.Members {
		if m.Awaits && w.check.live(m.ID) && !slices.ContainsFunc(endedRounds(req), func(r rounds.Record) bool { return r.Trainer == m.ID }) {
			ids = append(ids, m.ID)
		}
	}
	return ids
}

// endedRounds returns the records of rounds that a commit ends.
func endedRounds(req *pb.TxnRequest) (list []rounds.Record) {
	for _, op := range req.Success[1:] {
		p := op.GetRequestPut()
		var rec rounds.Record
		if p != nil && strings.HasPrefix(string(p.Key), rounds.RecordPrefix) && json.Unmarshal(p.Value, &rec) == nil && rec.Ended != nil {
			list = append(list, rec)
		}
	}
	return list
}

// finishedTasks returns the training tasks that a commit counts. early has the tasks that it dispatches and counts, by trainer: a forged
// finish can name a task before its trainer receives it.
func finishedTasks(ledger []byte) (finished map[dispatch]bool, early map[taskqueue.Ordinal]dispatch) {
	finished, early = map[dispatch]bool{}, map[taskqueue.Ordinal]dispatch{}
	dispatched := map[dispatch]taskqueue.Ordinal{}
	for ev, err := range taskqueue.LedgerEvents(ledger) {
		if err != nil || ev.Set != 0 {
			continue
		}
		d := dispatch{taskPosition{ev.Pass, ev.Position}, ev.Attempt}
		switch ev.Kind {
		case taskqueue.EventDispatched:
			dispatched[d] = ev.Trainer
		case taskqueue.EventFinished:
			finished[d] = true
			if by, ok := dispatched[d]; ok {
				early[by] = d
			}
		}
	}
	return finished, early
}

// decides checks the decisions of a commit: the model of the best trainer goes to worse ones, with changed values.
func (b *populationBook) decides(w *world, old, g *strategy.Generations) {
	for _, d := range g.Decisions {
		if slices.Contains(old.Decisions, d) {
			continue
		}
		b.decisions++
		b.decided[d.Generation] = w.check.last
		best, isRanked := b.figures[d.From]
		m, from := memberOf(g, d.Trainer), memberOf(g, d.From)
		before := memberOf(old, d.From)
		switch {
		case d.Generation != g.Number && d.Generation != old.Number || m == nil || from == nil || before == nil:
			w.breaks("a decision is of its generation", "%+v in generation %d", d, g.Number)
			continue
		case !isRanked:
			w.breaks("a source has a figure of the generation", "%+v, figures %v", d, b.figures)
		case m.Order == nil || m.Order.From != d.From || m.Order.Generation != d.Generation:
			w.breaks("a decision has its effect in the same commit", "%+v, order %+v", d, m.Order)
		}
		if worse, ok := b.figures[d.Trainer]; ok && worse <= best {
			w.breaks("only a better model replaces another one", "%+v: %v and %v", d, best, worse)
		}
		for id, loss := range b.figures {
			other := memberOf(g, id)
			if loss < best && other != nil && other.Path != "" && other.Figure != nil && other.Generation == d.Generation && w.check.live(id) {
				w.breaks("the best model goes to others", "%+v has %v, %s has %v", d, best, id, loss)
			}
		}
		was, v := before.Values["dropout"], m.Values["dropout"]
		if v != min(was*2, 0.9) && v != max(was/2, 0.1) {
			w.breaks("values come from the best trainer", "%+v: %v after %v", d, v, was)
		}
	}
}

// live reports whether a trainer has a session by the ledger.
func (c *check) live(id string) bool {
	for _, s := range c.sessions {
		if s.id == id && !s.lost && !s.left {
			return true
		}
	}
	return false
}

// keepsOrder checks that a model to receive is given up only when its task counts, or by a later decision, and that it comes with
// one task at a time.
func (b *populationBook) keepsOrder(w *world, next *stored, old *strategy.Generations, was *strategy.Member, g *strategy.Generations, finished map[dispatch]bool, early map[taskqueue.Ordinal]dispatch) {
	o := was.Order
	m := memberOf(g, was.ID)
	switch {
	case o == nil:
		return
	case m == nil:
		w.breaks("a member is kept", "%s", was.ID)
		return
	case m.Order != nil && m.Order.Generation == o.Generation:
		if o.Task != nil && *m.Order.Task != *o.Task && b.holds(w, next, was.ID, *o.Task) {
			w.breaks("a model comes with one task at a time", "%s has %v, and gets it with %v", was.ID, *o.Task, *m.Order.Task)
		}
		return
	case m.Order != nil && m.Order.Generation > o.Generation: // decided in this commit
		return
	case g.Last && !g.Open: // no task follows
		return
	case o.Task == nil && (g.Number > old.Number || old.Open && !g.Open): // the newest figures decide
		return
	}
	counts := o.Task != nil && finished[dispatch{taskPosition{o.Task.Pass, o.Task.Position}, o.Task.Attempt}]
	for by, d := range early {
		if s := w.check.sessions[by]; s != nil && s.id == was.ID && (o.Task == nil || !b.holds(w, next, was.ID, *o.Task)) {
			counts = true
			b.orders[receipt{was.ID, taskqueue.Token{Epoch: next.Epoch, Pass: d.pass, Position: d.position, Attempt: d.attempt}}] = o.Generation
		}
	}
	if !counts {
		w.breaks("a decision is not lost", "the model of generation %d for %s, with task %v", o.Generation, was.ID, o.Task)
		return
	}
	b.counted[was.ID] = o.Generation
	if b.received++; m.FromOf != o.Generation || m.From != o.From {
		evaluated := was.Awaits && !m.Awaits // its figure replaces the note
		if b.kept++; !strings.HasPrefix(m.Note, "keeps its model: ") && m.Incarnation == was.Incarnation && !evaluated {
			w.breaks("a received model is noted", "%+v after %+v", *m, *o)
		}
	}
}

// holds reports whether a trainer has a task by the stored state.
func (b *populationBook) holds(w *world, next *stored, id string, task taskqueue.Token) bool {
	for _, e := range next.live {
		for _, h := range e.holders {
			if s := w.check.sessions[h.trainer]; s != nil && s.id == id && !s.lost && e.pass == task.Pass && e.position == task.Position && h.attempt == task.Attempt {
				return true
			}
		}
	}
	return false
}

// answered checks the values and the model of a task against what was committed.
func (b *populationBook) answered(w *world, o taskqueue.Ordinal, a taskqueue.Answer) {
	if w.plan.population == nil || a.Token.Kind != taskqueue.Training {
		return
	}
	id := w.check.sessions[o].id
	if v, ok := a.HyperParameters["dropout"]; !ok || !b.values[id][v] {
		w.breaks("no effect before its commit", "%s receives %v, etcd had %v", id, a.HyperParameters, b.values[id])
	}
	m := memberOf(&b.state, id)
	_, ok := b.orders[receipt{id, a.Token}]
	ok = ok || m != nil && m.Order != nil && m.Order.Path == a.From.Path // a later request in the same commit has returned the task
	if !ok && a.From != (taskqueue.ModelSource{}) {
		w.breaks("no effect before its commit", "%s receives %+v with %v", id, a.From, a.Token)
	}
}

// receives checks that a trainer receives the model of a decision once.
func (b *populationBook) receives(w *world, id string, task taskqueue.Token) {
	generation := b.orders[receipt{id, task}]
	if generation <= b.counted[id] && !w.check.isCounted(task) {
		w.breaks("a received model does not come again", "%s gets that of generation %d with %v, after that of generation %d", id, generation, task, b.counted[id])
	}
}

// isCounted reports whether a training task counts by the ledger.
func (c *check) isCounted(task taskqueue.Token) bool {
	h := c.tasks[taskPosition{task.Pass, task.Position}]
	return h != nil && h.finished
}

// final checks the population of a job that has ended.
func (b *populationBook) final(w *world) {
	if w.plan.population == nil {
		return
	}
	if !b.state.Last || b.state.Open {
		w.breaks("the job ends after its last generation", "generation %d, last: %v, open: %v", b.state.Number, b.state.Last, b.state.Open)
	}
	for _, id := range slices.SortedFunc(maps.Keys(b.values), cmp.Compare) {
		for v := range b.values[id] {
			if v < 0.1 || v > 0.9 {
				w.breaks("values are within their limits", "%s: %v", id, v)
			}
		}
	}
}
