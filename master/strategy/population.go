package strategy

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"trainmaster/master/evaluation"
	"trainmaster/taskqueue"
)

// Population has the settings of population-based training. Each trainer has a model and values of its own.
type Population struct {
	Every   evaluation.Every // between two generations, without steps
	Figure  evaluation.Goal  // ranks the trainers
	Replace float64          // share of the trainers that receive another model, above 0 and at most 0.5
	Perturb float64          // factor by which values change, above 1
	Ranges  map[string]Range // by hyper-parameter
}

// Range has the limits of a hyper-parameter: 0 <= Min < Max.
type Range struct{ Min, Max float64 }

// The defaults of a population.
const (
	DefaultReplace = 0.25
	DefaultPerturb = 1.25
)

// MaxMembers is the maximum number of trainers in a population. Further trainers have values, and are not ranked.
const MaxMembers = 128

// Generations is the state of a population. The zero value is of a job that begins.
type Generations struct {
	Number    uint64                         `json:"number,omitempty"` // of the newest generation
	Open      bool                           `json:"open,omitempty"`   // it has members that await their evaluation
	Passes    uint64                         `json:"passes,omitempty"` // when the newest generation began
	Time      taskqueue.Clock                `json:"time,omitempty"`   // when the newest generation began
	Last      bool                           `json:"last,omitempty"`   // it is the one after the last pass
	Members   []Member                       `json:"members,omitempty"`
	Decisions []taskqueue.PopulationDecision `json:"decisions,omitempty"` // the newest
}

// Member is a trainer of a population.
type Member struct {
	ID          string             `json:"id"`
	Incarnation uint64             `json:"incarnation"` // newest session
	Values      map[string]float64 `json:"values"`
	Awaits      bool               `json:"awaits,omitempty"`     // its evaluation
	Figure      *float64           `json:"figure,omitempty"`     // newest
	Generation  uint64             `json:"generation,omitempty"` // of Figure or Diverged
	Diverged    bool               `json:"diverged,omitempty"`   // a metric was NaN or infinite
	Note        string             `json:"note,omitempty"`
	Path        string             `json:"path,omitempty"` // where this incarnation has stored its model last
	Order       *Order             `json:"order,omitempty"`
	From        string             `json:"from,omitempty"` // whose model this incarnation has continued with last
	FromOf      uint64             `json:"from_of,omitempty"`
}

// Order is the model that a member has to receive.
type Order struct {
	From        string            `json:"from"`
	Incarnation uint64            `json:"incarnation"` // of From
	Ordinal     taskqueue.Ordinal `json:"ordinal"`     // of From
	Generation  uint64            `json:"generation"`
	Address     string            `json:"address,omitempty"`
	Path        string            `json:"path,omitempty"`
	Task        *taskqueue.Token  `json:"task,omitempty"` // with which it comes; nil: not dispatched yet
}

// initial returns the values of a trainer at the start: from a hash, uniform between the limits, or between their logarithms if they are above 0.
func (p *Population) initial(job [16]byte, trainer string) map[string]float64 {
	values := map[string]float64{}
	for name, r := range p.Ranges {
		u := float64(hash(job, 0, trainer, name)>>11) / (1 << 53)
		if r.Min > 0 {
			values[name] = r.limit(r.Min * math.Pow(r.Max/r.Min, u))
		} else {
			values[name] = r.limit(r.Min + u*(r.Max-r.Min))
		}
	}
	return values
}

// perturbed returns values, each multiplied or divided by the factor.
func (p *Population) perturbed(job [16]byte, generation uint64, trainer string, values map[string]float64) map[string]float64 {
	next := map[string]float64{}
	for name, r := range p.Ranges {
		v := values[name]
		if hash(job, generation, trainer, name)&1 == 0 {
			v /= p.Perturb
		} else {
			v *= p.Perturb
		}
		//guard:perturbed-within-limits
		next[name] = r.limit(v)
	}
	return next
}

func (r Range) limit(v float64) float64 { return min(max(v, r.Min), r.Max) }

// hash makes a choice that every leader repeats.
func hash(job [16]byte, generation uint64, trainer, parameter string) uint64 {
	b := binary.BigEndian.AppendUint64(job[:], generation)
	sum := sha256.Sum256(fmt.Appendf(b, "%s/%s", trainer, parameter))
	return binary.BigEndian.Uint64(sum[:])
}

// better reports whether figure a is better than b.
func (p *Population) better(a, b float64) bool { return a != b && (a > b) == p.Figure.Max }

// Decide returns the next state of a population, and who receives whose model. isChanged reports that the state differs. job is the id of the job.
func (p *Population) Decide(job [16]byte, g Generations, o taskqueue.PopulationObservation) (next Generations, decisions []taskqueue.PopulationDecision, isChanged bool) {
	d := breeder{settings: p, job: job, o: o, Generations: g, live: map[string]taskqueue.Peer{}}
	d.Members = slices.Clone(g.Members)
	for _, peer := range o.Trainers {
		d.live[peer.ID] = peer
	}
	d.admit()
	d.dropOrders()
	d.evaluated()
	if d.Open && !slices.ContainsFunc(d.Members, func(m Member) bool { return m.Awaits }) {
		d.end()
	}
	d.begin()
	return d.Generations, d.decisions, d.isChanged
}

// breeder is the state of a population during one call of Decide.
type breeder struct {
	settings *Population
	job      [16]byte
	o        taskqueue.PopulationObservation
	Generations
	live      map[string]taskqueue.Peer
	decisions []taskqueue.PopulationDecision
	isChanged bool
}

func (g *Generations) member(id string) *Member {
	at, ok := slices.BinarySearchFunc(g.Members, id, func(m Member, id string) int { return strings.Compare(m.ID, id) })
	if !ok {
		return nil
	}
	return &g.Members[at]
}

// admit adds trainers. A trainer that was started again has its values, and another model.
func (d *breeder) admit() {
	for _, peer := range d.o.Trainers {
		if m := d.member(peer.ID); m != nil {
			if m.Incarnation != peer.Incarnation {
				//guard:decided-model-outlives-the-session
				*m = Member{ID: m.ID, Incarnation: peer.Incarnation, Values: m.Values, Awaits: m.Awaits, Order: m.Order}
				d.isChanged = true
			}
			continue
		}
		//guard:population-bounded
		if len(d.Members) >= MaxMembers {
			d.prune()
		}
		if len(d.Members) >= MaxMembers {
			continue
		}
		at, _ := slices.BinarySearchFunc(d.Members, peer.ID, func(m Member, id string) int { return strings.Compare(m.ID, id) })
		d.isChanged = true
		d.Members = slices.Insert(d.Members, at, Member{ID: peer.ID, Incarnation: peer.Incarnation, Values: d.settings.initial(d.job, peer.ID)})
	}
}

// prune forgets trainers without a session.
func (d *breeder) prune() {
	n := len(d.Members)
	d.Members = slices.DeleteFunc(d.Members, func(m Member) bool { _, ok := d.live[m.ID]; return !ok })
	d.isChanged = d.isChanged || len(d.Members) < n
}

// dropOrders gives up models of trainers that are lost: at their address, nothing or another model is served.
func (d *breeder) dropOrders() {
	for i := range d.Members {
		m := &d.Members[i]
		if m.Order == nil || m.Order.Path != "" {
			continue
		}
		//guard:model-of-a-lost-trainer-dropped
		if d.live[m.Order.From].Incarnation != m.Order.Incarnation {
			m.Note = fmt.Sprintf("keeps its model: trainer %s was lost", m.Order.From)
			m.Order, d.isChanged = nil, true
		}
	}
}

// evaluated takes the figures of the round that ends, and ends the wait for trainers that cannot be evaluated.
func (d *breeder) evaluated() {
	if !d.Open {
		return
	}
	for i := range d.Members {
		m := &d.Members[i]
		r := d.o.Round
		switch _, isLive := d.live[m.ID]; {
		case !m.Awaits:
		case r != nil && r.Trainer == m.ID:
			m.Awaits, d.isChanged = false, true
			d.take(m, r)
		//guard:generation-waits-for-no-lost-trainer
		case !isLive:
			m.Awaits, m.Note, d.isChanged = false, "not evaluated: it was lost", true
		}
	}
}

// take takes the outcome of the round of a member.
func (d *breeder) take(m *Member, r *taskqueue.EndedRound) {
	m.Note = ""
	v, ok := r.Figures[d.settings.Figure.Figure]
	switch {
	case r.NotFinite != "":
		m.Figure, m.Diverged, m.Generation, m.Note = nil, true, d.Number, clip(r.NotFinite)+" is not a finite number"
	case r.Outcome != "":
		m.Note = clip("not evaluated: " + r.Outcome)
	case !ok:
		m.Note = "not evaluated: no figure " + d.settings.Figure.Figure
	default:
		m.Figure, m.Diverged, m.Generation = &v, false, d.Number
	}
}

// ranked returns the members with an outcome in the generation, the worst first.
func (d *breeder) ranked() []*Member {
	var list []*Member
	for i := range d.Members {
		m := &d.Members[i]
		if _, isLive := d.live[m.ID]; isLive && m.Generation == d.Number && (m.Figure != nil || m.Diverged) {
			list = append(list, m)
		}
	}
	slices.SortStableFunc(list, func(a, b *Member) int {
		switch {
		case a.Diverged || b.Diverged:
			return cmp.Compare(boolean(b.Diverged), boolean(a.Diverged))
		case d.settings.better(*b.Figure, *a.Figure):
			return -1
		case d.settings.better(*a.Figure, *b.Figure):
			return 1
		}
		return 0
	})
	return list
}

func boolean(b bool) int {
	if b {
		return 1
	}
	return 0
}

// end ends the generation: the worst members receive the best model. After the last pass, no member does.
func (d *breeder) end() {
	//guard:generation-ends
	d.Open, d.isChanged = false, true
	if d.Last {
		for i := range d.Members {
			d.Members[i].Order = nil // no task follows
		}
		return
	}
	list := d.ranked()
	for _, m := range list {
		if m.Order != nil && m.Order.Task == nil {
			m.Order = nil // of an earlier generation: the newest figures decide
		}
	}
	best := d.source(list)
	if best == nil || len(list) < 2 {
		return
	}
	n := max(1, int(d.settings.Replace*float64(len(list))))
	for _, m := range list[:n] {
		//guard:only-a-better-model-replaces
		if m.ID == best.ID || !m.Diverged && !d.settings.better(*best.Figure, *m.Figure) {
			break
		}
		d.replace(m, best)
	}
}

// source returns the best member that can send its model; nil: none can.
func (d *breeder) source(list []*Member) *Member {
	for _, m := range slices.Backward(list) {
		if m.Figure != nil && (m.Path != "" || d.live[m.ID].Address != "") {
			return m
		}
	}
	return nil
}

func (d *breeder) replace(m, best *Member) {
	peer := d.live[best.ID]
	m.Order = &Order{From: best.ID, Incarnation: peer.Incarnation, Ordinal: peer.Ordinal, Generation: d.Number, Address: peer.Address, Path: best.Path}
	m.Values = d.settings.perturbed(d.job, d.Number, m.ID, best.Values)
	found := "not finite"
	if m.Figure != nil {
		found = fmt.Sprint(*m.Figure)
	}
	decision := taskqueue.PopulationDecision{
		Generation: d.Number, Trainer: m.ID, From: best.ID, Clock: d.o.Clock,
		Reason: fmt.Sprintf("%s is %s, and %v of %s", d.settings.Figure.Figure, found, *best.Figure, best.ID),
	}
	d.decisions = append(d.decisions, decision)
	all := append(slices.Clone(d.Decisions), decision)
	d.Decisions = all[max(0, len(all)-KeptDecisions):]
}

// begin begins a generation if it is due. Triggers of an open generation merge.
func (d *breeder) begin() {
	every := d.settings.Every
	due := every.Passes > 0 && d.o.Passes/every.Passes > d.Passes/every.Passes
	if interval := taskqueue.Clock(every.Time / time.Millisecond); interval > 0 && d.o.Clock/interval > d.Time/interval {
		due = true
	}
	last := d.o.Done && !d.Last
	//guard:one-open-generation
	if d.Open || d.Last || !due && !last {
		return
	}
	if len(d.live) == 0 && !last {
		return // when a trainer joins
	}
	d.Number++
	d.isChanged = true
	d.Open, d.Last, d.Passes, d.Time = true, last, d.o.Passes, d.o.Clock
	waits := false
	for i := range d.Members {
		_, isLive := d.live[d.Members[i].ID]
		d.Members[i].Awaits = isLive
		waits = waits || isLive
	}
	if !waits {
		d.end()
	}
}

// ranking returns the evaluated members, the best first.
func (p *Population) ranking(g *Generations) (ids []string) {
	list := slices.DeleteFunc(slices.Clone(g.Members), func(m Member) bool { return m.Figure == nil })
	slices.SortStableFunc(list, func(a, b Member) int {
		switch {
		//guard:newest-figures-rank-first
		case a.Generation != b.Generation:
			return cmp.Compare(b.Generation, a.Generation)
		case p.better(*a.Figure, *b.Figure):
			return -1
		case p.better(*b.Figure, *a.Figure):
			return 1
		}
		return 0
	})
	for _, m := range list {
		ids = append(ids, m.ID)
	}
	return ids
}

// maxNote is the maximum size of a note in bytes.
const maxNote = 256

// clip limits what a trainer reports. Its encoding must be valid.
func clip(text string) string { return strings.ToValidUTF8(text[:min(len(text), maxNote)], "") }
