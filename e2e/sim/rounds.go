package sim

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"math/bits"
	"math/rand/v2"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"trainmaster/master/committer"
	"trainmaster/master/evaluation"
	"trainmaster/master/evaluation/metric"
	"trainmaster/master/rounds"
	"trainmaster/taskqueue"
)

// Histories of evaluation. The leader decides about rounds with the production code (rounds.Rounds). Trainers name a model after each
// training task, and report a metric of each evaluation task: a power of two, so that the sum shows which results were merged.

// evaluate selects evaluation rounds.
func (p *plan) evaluate(rng *rand.Rand) {
	p.heldOut = 1 + rng.IntN(6)
	p.patience *= 3 // a round takes as long as the slowest trainer, and a round may follow each training task
	p.options.HoldEnd, p.options.Merge = true, metric.MergeEncoded
	switch rng.IntN(3) {
	case 0:
		p.evaluateEvery.Passes = 1
	case 1:
		p.evaluateEvery.Steps = 1 + rng.Uint64N(10)
	default:
		p.evaluateEvery.Time = 2*time.Second + time.Duration(rng.Int64N(int64(8*time.Second)))
	}
	for i := range p.habits {
		h := &p.habits[i]
		h.evaluates = i < 3 || rng.IntN(2) == 0
		h.plain = h.plain && !h.evaluates
	}
	if rng.IntN(2) == 0 {
		p.faults.between = 0.1 * rng.Float64()
	}
}

// makeHeldOut makes the evaluation dataset.
func (w *world) makeHeldOut() error {
	chunks, size := chunksOf(w.plan.heldOut)
	table := taskqueue.NewTable(len(chunks))
	if err := table.Add(taskqueue.File{Path: "/data/held-out", Size: size}, chunks); err != nil {
		return err
	}
	table.Group(1)
	part, err := w.codec.encode(table.Part(0, len(chunks)))
	w.heldOut, w.heldOutPart = &taskqueue.Report{
		Digest: sha256.Sum256([]byte("held out")), ReportID: "held out", Parts: 1, PartsDigest: sha256.Sum256(part), Table: table,
		SetSpec: taskqueue.SetSpec{Kind: taskqueue.Evaluation},
	}, part
	return err
}

// evaluate runs the component of evaluation rounds until the term ends.
func (n *node) evaluate(d *committer.Committer) error {
	ctx, cancel := context.WithCancelCause(context.Background())
	others := n.endControl
	n.endControl = func(cause error) { others(cause); cancel(cause) }
	link := &link{process: n.proc, etcd: n.world.etcd, world: n.world, cut: &n.cut, heard: &n.heard, idle: func() {}}
	d.Await(n.awaitAnswer)
	term := leaderTerm{d, n}
	part := rounds.New(rounds.Config{
		Evaluation: evaluation.Config{Every: n.world.plan.evaluateEvery}, Store: &store{link: link}, Log: n.world.log,
		Register: func(ctx context.Context) error {
			_, err := term.Submit(ctx, n.world.heldOut)
			return err
		},
	})
	if err := part.Prepare(ctx, term); err != nil { // etcd did not answer
		return err
	}
	n.runPart(ctx, part, link, term)
	return nil
}

// measure evaluates a task, and returns its metrics.
func (w *worker) measure(task *taskqueue.Task) []byte {
	w.world.check.rounds.evaluates(w.world, w.taken)
	var set metric.Set
	if err := set.AddSum(tasksMetric, float64(bitOf(task.Token.Position))); err != nil {
		panic(err)
	}
	w.addLoss(&set)
	return set.Encode()
}

const tasksMetric = "tasks"

func bitOf(position int) uint64 { return 1 << position }

// roundBook has the rounds as the ledger and the stored decisions show them.
type roundBook struct {
	begun   map[uint64]taskqueue.Round // by number, without results
	last    uint64
	counted map[taskqueue.Pass]uint64 // bits of positions

	dispatched []evaluator // in this commit
	closed     map[taskqueue.Pass]bool

	terms     map[taskqueue.Pass]int64 // of the first counted result
	continued int                      // results of rounds that had results in an earlier term
}

// evaluator is a trainer that gets a task of a round.
type evaluator struct {
	pass taskqueue.Pass
	id   string
}

func newRoundBook() *roundBook {
	return &roundBook{begun: map[uint64]taskqueue.Round{}, counted: map[taskqueue.Pass]uint64{}, closed: map[taskqueue.Pass]bool{}, terms: map[taskqueue.Pass]int64{}}
}

// evaluates checks that a trainer evaluates the model of the round.
func (b *roundBook) evaluates(w *world, r taskqueue.Round) {
	if begun, ok := b.begun[r.Number]; !ok || !isSameRound(r, begun) {
		w.breaks("a task has the model of its round", "found %+v, the round is %+v", r, begun)
	}
}

func isSameRound(a, b taskqueue.Round) bool {
	return a.Number == b.Number && a.Set == b.Set && a.Pass == b.Pass && a.Version == b.Version && a.Model == b.Model && a.Trainer == b.Trainer && a.Name == b.Name
}

// event records what the ledger has about an evaluation task.
func (b *roundBook) event(w *world, next *stored, ev *taskqueue.LedgerEvent) {
	switch ev.Kind {
	case taskqueue.EventDispatched:
		if b.counted[ev.Pass]&bitOf(ev.Position) != 0 {
			w.breaks("a finished task is never dispatched again", "evaluation pass %d, position %d", ev.Pass, ev.Position)
		}
		b.dispatched = append(b.dispatched, evaluator{ev.Pass, w.check.sessions[ev.Trainer].id})
	case taskqueue.EventFinished:
		if b.counted[ev.Pass]&bitOf(ev.Position) != 0 {
			w.breaks("a task is counted once in a pass", "evaluation pass %d, position %d", ev.Pass, ev.Position)
		}
		b.counted[ev.Pass] |= bitOf(ev.Position)
		if first, ok := b.terms[ev.Pass]; !ok {
			b.terms[ev.Pass] = next.LockRevision
		} else if first != next.LockRevision {
			b.continued++
		}
	case taskqueue.EventPassClosed, taskqueue.EventAbandoned:
		b.closed[ev.Pass] = true
	}
}

// verdict checks that a finish that counts is stored.
func (b *roundBook) verdict(w *world, r taskqueue.Result, status taskqueue.FinishStatus) {
	isStored := b.closed[r.Token.Pass] || b.counted[r.Token.Pass]&bitOf(r.Token.Position) != 0
	if !isStored && (status == taskqueue.Counted || status == taskqueue.AlreadyCounted) {
		w.breaks("an answer is stored", "%v is %v, and not finished by the ledger", r.Token, status)
	}
}

// written checks the stored round after a commit: rounds follow each other, begin with their decision, keep their model, and have the metrics of
// each counted task once.
func (b *roundBook) written(w *world, req *pb.TxnRequest) {
	r, err := taskqueue.DecodeRound(w.etcd.keys[taskqueue.RoundKey].GetValue())
	if err != nil {
		w.breaks("the round can be read", "%v", err)
	}
	if r.Number != b.last {
		b.begins(w, req, r)
	}
	for _, e := range b.dispatched {
		for _, of := range b.begun {
			if of.Pass == e.pass && of.Name != "" && of.Name != e.id {
				w.breaks("a trainer evaluates its model itself", "%s gets a task of the round of %s", e.id, of.Name)
			}
		}
	}
	b.dispatched = b.dispatched[:0]
	if begun := b.begun[r.Number]; r.Number > 0 && !isSameRound(r, begun) {
		w.breaks("a round keeps its model", "began as %+v, found %+v", begun, r)
	}
	merged, err := mergedTasks(r.Metrics)
	if counted := b.counted[r.Pass]; err != nil || merged != counted || r.Results != bits.OnesCount64(counted) {
		w.breaks("metrics of each counted task are merged once", "round %d: %d results of tasks %b, %v; the ledger has %b", r.Number, r.Results, merged, err, counted)
	}
}

func (b *roundBook) begins(w *world, req *pb.TxnRequest, r taskqueue.Round) {
	if r.Number != b.last+1 || b.last > 0 && !b.closed[b.begun[b.last].Pass] {
		w.breaks("rounds follow each other", "round %d begins after round %d, closed: %v", r.Number, b.last, b.closed)
	}
	isDecided := false
	for _, op := range req.Success {
		if p := op.GetRequestPut(); string(p.GetKey()) == evaluation.Key {
			state, err := evaluation.Decode(p.Value)
			isDecided = err == nil && state.Open != nil && state.Open.Number == r.Number && state.Open.Model == r.Model
		}
	}
	if !isDecided {
		w.breaks("a round begins with its decision", "round %d", r.Number)
	}
	r.Results, r.Metrics = 0, nil
	b.begun[r.Number], b.last = r, r.Number
}

// mergedTasks returns the bits of the tasks whose metrics were merged.
func mergedTasks(metrics []byte) (uint64, error) {
	if metrics == nil {
		return 0, nil
	}
	set, err := metric.Decode(metrics)
	if err != nil {
		return 0, err
	}
	for _, f := range set.Figures() {
		if f.Name == tasksMetric {
			return uint64(f.Value), nil
		}
	}
	return 0, nil
}

// final checks the rounds of a job that has ended: all have ended with the figures of their tasks, and the last round is of the last model.
func (b *roundBook) final(w *world) {
	for number, begun := range b.begun {
		if number+rounds.KeptRecords <= b.last { // its record is removed
			continue
		}
		var rec rounds.Record
		if err := json.Unmarshal(w.etcd.keys[rounds.RecordKey(number)].GetValue(), &rec); err != nil {
			w.breaks("each round has a record", "round %d: %v", number, err)
			continue
		}
		counted := b.counted[begun.Pass]
		if rec.Ended != nil && rec.Outcome != "" && begun.Name != "" && len(rec.Figures) == 0 {
			continue // it has ended early
		}
		if rec.Ended == nil || rec.Results != bits.OnesCount64(counted) || uint64(rec.Figures[tasksMetric]) != counted || rec.Model != begun.Model {
			w.breaks("the record of a round has its figures", "round %d: %+v, tasks %b", number, rec, counted)
		}
	}
	if w.plan.population != nil {
		return
	}
	var model taskqueue.Model
	if value := w.etcd.keys[taskqueue.ModelKey].GetValue(); value != nil {
		if err := json.Unmarshal(value, &model); err != nil {
			w.breaks("the model can be read", "%v", err)
		}
	}
	if last := b.begun[b.last].Model; last != model.Path {
		w.breaks("the job ends after the evaluation of its last model", "the last round is of %q, the last model is %q", last, model.Path)
	}
}
