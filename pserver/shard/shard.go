package shard

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"trainmaster/pserver/model"
	"trainmaster/pserver/table"
)

// Shard is the state of one parameter server: parameters and trainers.
type Shard struct {
	observe     func(Notice) // nil: nothing observes
	index       int
	epoch       uint16 // of this start, never 0
	initTimeout time.Duration
	Counters    Counters

	// ready is set when the parameters are complete. Until then only the initializer changes them. A rollback clears it.
	ready atomic.Bool
	view  atomic.Pointer[View] // nil until the first claim or a restore

	mu       sync.Mutex
	claim    claim
	trainers map[uint32]*Trainer // by ordinal: the newest incarnation of each
	JobID    string              // the id of the job, hexadecimal; "": not known yet
	TableKey table.Key           // of the job, for tables that begin here; set before the shard is used
	retired  Retirement
	told     bool // whether the leader has sent retired in this process
	// No version after unnamedAfter has gradients of the incarnations in unnamed. It comes from the leader; retired can also come
	// from a checkpoint.
	unnamed      Retirement
	unnamedAfter uint64

	unrestored atomic.Pointer[string] // Reason why the shard waits without parameters, or nil.
	noSet      atomic.Bool            // Whether the job keeps checkpoints and has none yet.
	rolledBack atomic.Uint32          // Job epoch of the last rollback of this process, or 0.
	overflow   atomic.Pointer[string] // description of the first value that is not finite, or nil

	jobEpoch  atomic.Uint32 // Grows with each rollback of the job, from 1. Fits a header.
	version   atomic.Uint64 // Synchronous: the version reached.
	versionMu sync.Mutex
	changed   chan struct{} // Closed and replaced when version grows. Guarded by versionMu.

	// first is closed when the first checkpoint set has the parameters; until then pushes wait. nil: they do not wait.
	first atomic.Pointer[chan struct{}]

	stages    stages
	StageWait time.Duration // see Config

	// commitMu serializes commits and the start of a cut, so that a cut
	// of a synchronous shard is of one version.
	commitMu sync.Mutex
	cut      atomic.Pointer[Cut] // nil: no checkpoint is being written
	cuts     uint64              // number of the last cut; one checkpoint is written at a time

	migration migration
	over      chan error // receives once: nil when this shard is no longer of the job

	rate atomic.Pointer[Rate] // of asynchronous updates; never nil

	rowsMu sync.RWMutex // held while a commit changes rows of tables and the version, read by lookups
}

// View is a model and its blocks on this shard. It never changes, except for the contents of the blocks.
type View struct {
	model  *model.Model
	blocks []*Block          // by number
	byID   map[uint64]*Block // by the number in the placement
	tables []*table.Table    // by number, those without a slot here too
}

// Model is the model of the view.
func (h *View) Model() *model.Model { return h.model }

// Blocks are the blocks of the shard, by number.
func (h *View) Blocks() []*Block { return h.blocks }

// Block is the block of a number in the placement; nil if the shard does not hold it.
func (h *View) Block(id uint64) *Block { return h.byID[id] }

// Tables are the tables of the model, by number, those without a slot here too.
func (h *View) Tables() []*table.Table { return h.tables }

// Stored estimates the bytes of a checkpoint. It is more than the file size if the checkpoint leaves out unchanged rows.
func (h *View) Stored() (n int64) {
	for _, b := range h.blocks {
		n += int64(4 * b.Len * (1 + len(h.model.Rule.Slots())))
	}
	for _, t := range h.tables {
		n += int64(t.Bytes())
	}
	return n
}

// claim is the exclusive right of one trainer to put the first parameters.
type claim struct {
	ordinal     uint32
	incarnation uint64 // 0: no trainer
	last        time.Time
}

// Counters counts the requests since the start of the server.
type Counters struct {
	Pulled, Pushed, Duplicates, Staged, Committed, Refused atomic.Uint64
	RowsLookedUp, RowsPushed, RowsStaged                   atomic.Uint64
	Switched                                               atomic.Uint64 // to other blocks
	Connections                                            atomic.Int64

	StaleScaled, StalenessSum, StalenessMax atomic.Uint64
}

// Gradients is the number of received gradients. Pulls and lookups do not count: their client may only read.
func (c *Counters) Gradients() uint64 {
	return c.Pushed.Load() + c.Duplicates.Load() + c.Staged.Load() + c.RowsPushed.Load() + c.RowsStaged.Load()
}

// stale counts an applied push.
func (c *Counters) stale(staleness uint64, weight float32) {
	if weight < 1 {
		c.StaleScaled.Add(1)
	}
	c.StalenessSum.Add(staleness)
	for {
		highest := c.StalenessMax.Load()
		if staleness <= highest || c.StalenessMax.CompareAndSwap(highest, staleness) {
			return
		}
	}
}

// Notice is an event for the log of the server.
type Notice struct {
	Severity Severity
	Text     string
	Fields   map[string]any
}

// Severity says whether an operator must act on a notice.
type Severity int

// The severities.
const (
	Info Severity = iota
	Warning
	Error
)

func (s *Shard) note(severity Severity, text string, fields map[string]any) {
	if s.observe != nil {
		s.observe(Notice{severity, text, fields})
	}
}

// New returns the shard of an index without parameters. epoch is the number of this start, never 0. observe receives the notices, under
// locks of the shard: it must not call the shard. nil: nothing receives them.
func New(observe func(Notice), index int, epoch uint16, initTimeout time.Duration, stageBytes int64) *Shard {
	s := &Shard{
		observe: observe, index: index, epoch: epoch, initTimeout: initTimeout,
		trainers: map[uint32]*Trainer{}, changed: make(chan struct{}), over: make(chan error, 1),
		stages: stages{limit: stageBytes, byIncarnation: map[uint64]*stage{}},
	}
	s.jobEpoch.Store(1)
	s.rate.Store(&Rate{Scale: 1})
	return s
}

// Index is the number of the shard.
func (s *Shard) Index() int { return s.index }

// Epoch is the number of this start, never 0.
func (s *Shard) Epoch() uint16 { return s.epoch }

// JobEpoch grows with each rollback of the job, from 1. It fits a header.
func (s *Shard) JobEpoch() uint32 { return s.jobEpoch.Load() }

// Version is the version that a synchronous shard has reached.
func (s *Shard) Version() uint64 { return s.version.Load() }

// Ready reports whether the parameters are complete.
func (s *Shard) Ready() bool { return s.ready.Load() }

// View is what the shard holds now; nil before the first claim or a restore.
func (s *Shard) View() *View { return s.view.Load() }

// Over receives once: nil when this shard is no longer of the job, or why it must end.
func (s *Shard) Over() <-chan error { return s.over }

// AwaitsPlacement reports whether the shard started without a block, in a job whose blocks are moved, and has no placement yet.
func (s *Shard) AwaitsPlacement() bool { return s.migration.joins && s.view.Load() == nil }

// RolledBackTo is the job epoch of the last rollback of this process, or 0.
func (s *Shard) RolledBackTo() uint32 { return s.rolledBack.Load() }

// Unrestored returns the reason why the shard waits, empty if it does not.
func (s *Shard) Unrestored() string {
	if text := s.unrestored.Load(); text != nil {
		return *text
	}
	return ""
}

// SetUnrestored sets the reason why the shard waits, empty if it does not, and reports whether the reason is another one than before.
func (s *Shard) SetUnrestored(text string) (isNew bool) {
	if text == "" {
		return s.unrestored.Swap(nil) != nil
	}
	before := s.unrestored.Swap(&text)
	return before == nil || *before != text
}

// SetNoSet says whether the shard keeps checkpoints of a job that has none yet. No shard of such a job has applied a push.
func (s *Shard) SetNoSet(isSo bool) { s.noSet.Store(isSo) }

// Lacking is the refusal of a shard without parameters.
func (s *Shard) Lacking() *Refusal {
	if s.noSet.Load() {
		return Refuse(NoSet, "shard %d has no parameters, and the job has no checkpoint set yet", s.index)
	}
	return Refuse(NoParameters, "shard %d has no parameters", s.index)
}

// Changes counts the changes of the state that a checkpoint stores.
func (s *Shard) Changes() uint64 {
	return s.Counters.Pushed.Load() + s.Counters.RowsPushed.Load() + s.Counters.Committed.Load() + s.Counters.Switched.Load()
}

func newView(m *model.Model, index int) *View {
	h := &View{model: m, byID: map[uint64]*Block{}}
	for i, b := range m.Placement.Owned(index) {
		blk := newBlock(m, b)
		blk.Local = i
		h.blocks = append(h.blocks, blk)
		h.byID[b.ID] = blk
	}
	return h
}

// Outcome is the answer to a trainer that requests the claim to initialize.
type Outcome int

const (
	OutcomeReady Outcome = iota
	OutcomeWait
	OutcomeClaimed
)

// Claim gives the claim to a trainer, unless another trainer holds it and is active. It returns the holder and the view that the outcome
// is about: a rollback can replace the view of the shard at any time. The error describes how the trainer's model differs from the
// shard's.
func (s *Shard) Claim(m *model.Model, ordinal uint32, incarnation uint64, now time.Time) (Outcome, uint32, *View, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.view.Load()
	if s.ready.Load() {
		return OutcomeReady, 0, h, h.model.Differ(m)
	}
	idle := now.Sub(s.claim.last)
	if held := s.claim.incarnation != 0 && s.claim.incarnation != incarnation; held && idle < s.initTimeout {
		return OutcomeWait, s.claim.ordinal, h, h.model.Differ(m)
	} else if held {
		s.note(Warning, "initializer lost its claim", map[string]any{"trainer": s.claim.ordinal, "silent": idle, "successor": ordinal})
	}
	if h == nil || !h.model.Equal(m) {
		h = s.newView(m)
		s.view.Store(h)
		clear(s.trainers)
	}
	s.claim = claim{ordinal, incarnation, now}
	return OutcomeClaimed, ordinal, h, nil
}

// Put takes the first parameters of a block from the holder of the claim.
func (s *Shard) Put(h *View, b *Block, incarnation uint64, values Values, now time.Time) *Refusal {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ready.Load() || s.claim.incarnation != incarnation || s.view.Load() != h {
		return Refuse(NotClaimed, "incarnation %d does not hold the claim to initialize shard %d", incarnation, s.index)
	}
	s.claim.last = now
	if !b.fill(values, h.model.Rule) {
		return RefuseChanged("put", b.Name())
	}
	return nil
}

// Finish makes the parameters visible. If keepsSets, pushes to an asynchronous shard wait until Open.
func (s *Shard) Finish(incarnation uint64, keepsSets bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ready.Load() {
		return nil
	}
	if incarnation == 0 || s.claim.incarnation != incarnation {
		return fmt.Errorf("%w: incarnation %d does not hold the claim to initialize shard %d", ErrNotClaimed, incarnation, s.index)
	}
	h := s.view.Load()
	if i := slices.IndexFunc(h.blocks, func(b *Block) bool { return !b.filled() }); i >= 0 {
		return fmt.Errorf("%w: shard %d has no parameters yet for %s", ErrIncomplete, s.index, h.blocks[i].Name())
	}
	//guard:first-set-before-pushes
	if keepsSets && !h.model.Sync {
		s.first.Store(new(make(chan struct{})))
	}
	s.claim = claim{}
	s.ready.Store(true)
	s.note(Info, "parameters initialized", map[string]any{"blocks": len(h.blocks), "tensors": len(h.model.Placement.Tensors), "mode": h.model.Mode()})
	return nil
}

// AwaitsFirstSet reports whether pushes wait until a checkpoint set has the first parameters.
func (s *Shard) AwaitsFirstSet() bool { return s.first.Load() != nil }

// Open lets pushes begin.
func (s *Shard) Open() {
	if first := s.first.Swap(nil); first != nil {
		close(*first)
	}
}

// opened refuses a push before a checkpoint set has the first parameters.
func (s *Shard) opened() *Refusal {
	if first := s.first.Load(); first != nil {
		return Refuse(NotYet, "shard %d waits for the first checkpoint set: see master status", s.index).Until(*first)
	}
	return nil
}

// Reached refuses a request for a version that the shard has not reached.
func (s *Shard) Reached(version uint64) *Refusal {
	now, changed := s.versionNow()
	if now >= version {
		return nil
	}
	return Refuse(NotYet, "version %d is not committed yet, shard %d is at %d", version, s.index, now).At(now).Until(changed)
}

// versionNow returns the version, and a channel that is closed when there is a later one.
func (s *Shard) versionNow() (version uint64, changed <-chan struct{}) {
	s.versionMu.Lock()
	defer s.versionMu.Unlock()
	return s.version.Load(), s.changed
}

func (s *Shard) advanceTo(version uint64) {
	s.versionMu.Lock()
	defer s.versionMu.Unlock()
	s.version.Store(version)
	close(s.changed)
	s.changed = make(chan struct{})
}
