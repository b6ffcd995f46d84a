package committer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

	"trainmaster/master/component"
	"trainmaster/master/store"
	"trainmaster/taskqueue"
)

// state is the queue of a term with its stored form: what the committer applies events to,
// saves, and goes back to.
type state struct {
	store  store.Store
	lead   store.Leadership
	config Config
	log    *logrus.Entry
	time   component.Clock

	jobID       [16]byte
	queue       *taskqueue.Queue
	revision    int64             // of the stored state; 0: no state is stored
	stored      []byte            // the stored state
	limit       int               // of its size: above it nothing new is dispatched
	roster      map[string][]byte // as stored, by trainer id
	step        []byte            // value of taskqueue.StepKey, or the step that the latest checkpoint set implies
	round       []byte            // value of taskqueue.RoundKey
	model       []byte            // value of taskqueue.ModelKey
	evaluation  []byte            // as stored under taskqueue.EvaluationKey
	written     time.Time         // when the last commit ended
	tables      atomic.Pointer[[]*taskqueue.Table]
	number      atomic.Uint64 // of the last commit
	ledgerBytes atomic.Uint64 // bytes of the ledger, in this term
	secret      jobSecret
	proven      atomic.Pointer[provenCommit] // the last commit
	stopping    context.Context              // ends when the master is to stop
	refusal     atomic.Value                 // string: why the store refused the last commit; "": it did not
	answered    func()                       // called when etcd answered
	counts      counters

	strategy, statistics []byte // values of taskqueue.StrategyKey and StatisticsKey
	population           []byte // value of taskqueue.PopulationKey
}

type counters struct {
	commits, refused atomic.Int64
}

// batchSlack is the number of keys reserved in a transaction for the writes of one event after its first key.
const batchSlack = 40

// MaxStoredState is the maximum size of a decoded state.
const MaxStoredState = 64 << 20 // far above what MaxStateBytes of gzip can hold in columns

func stack() string { return string(debug.Stack()) }

// Terminal reports whether an error of a fenced write ends the term.
func Terminal(err error) bool {
	return errors.Is(err, taskqueue.ErrFenced) || errors.Is(err, taskqueue.ErrUnknownOutcome)
}

// save commits what a batch left to write.
func (s *state) save(ctx context.Context, ready taskqueue.Ready) error {
	//guard:roster-stored
	writes := ready.Writes
	entries := ready.Entries
	//guard:ledger-entry-written
	if len(entries) > 0 && !s.config.NoLedger {
		entries = taskqueue.StampEvents(entries, s.time.Now())
		writes = append(writes, taskqueue.Write{Key: taskqueue.LedgerKey(s.queue.Commit()), Value: entries})
	}
	if !s.secret.stored {
		writes = append(writes, taskqueue.Write{Key: taskqueue.SecretKey, Value: s.secret.Encode()})
	}
	encoded, err := s.store.Encode(s.queue.Snapshot(s.lead.Revision(), rand.Uint64()))
	if err != nil {
		return fmt.Errorf("encode the state: %w", err)
	}
	bounded, cancel := context.WithTimeout(ctx, commitTimeout)
	revision, err := s.lead.Commit(bounded, s.revision, encoded, writes)
	cancel()
	if err = orFenced(ctx, err); errors.Is(err, taskqueue.ErrUnknownOutcome) {
		//guard:unknown-outcome-resolved
		revision, err = s.resolveOutcome(ctx, encoded, writes, err)
	}
	if err != nil {
		s.refusal.Store(err.Error())
		return err
	}
	s.refusal.Store("")
	s.revision, s.stored, s.written, s.secret.stored = revision, encoded, s.time.Now(), true
	s.committed(s.queue.Commit())
	s.ledgerBytes.Add(uint64(len(entries)))
	s.answered()
	s.queue.Hold(len(encoded) > s.limit)
	s.counts.commits.Add(1)
	for _, w := range ready.Writes {
		switch w.Key {
		case taskqueue.StepKey:
			s.step = w.Value
		case taskqueue.RoundKey:
			s.round = w.Value
		case taskqueue.ModelKey:
			s.model = w.Value
		case taskqueue.EvaluationKey:
			s.evaluation = w.Value
		case taskqueue.StrategyKey:
			s.strategy = w.Value
		case taskqueue.StatisticsKey:
			s.statistics = w.Value
		case taskqueue.PopulationKey:
			s.population = w.Value
		}
		if id, ok := strings.CutPrefix(w.Key, taskqueue.RosterPrefix); ok {
			if w.Delete {
				delete(s.roster, id)
			} else {
				s.roster[id] = w.Value
			}
		}
	}
	s.publish()
	for _, n := range ready.Notices {
		line := s.log.WithFields(n.Fields)
		switch {
		case n.Error:
			line.Error(n.What)
		case n.Warning:
			line.Warn(n.What)
		default:
			line.Info(n.What)
		}
	}
	return nil
}

func (s *state) since(t time.Time) time.Duration { return s.time.Now().Sub(t) }

// orFenced returns the error of a commit. After the end of the term, the next leader sees the outcome.
func orFenced(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("%w: %w", taskqueue.ErrFenced, err)
	}
	return err
}

// resolveOutcome resolves an unknown outcome. While an attempt may still be in progress, only the stored state decides the
// outcome. A later answer does not: a refusal concerns its own attempt. The same bytes are sent until they, or another
// state, are stored. A store that refuses permanently would block the callers forever. The term therefore ends after
// the time to live of the lease, or when the master stops; the revoked lease fences the attempts in progress.
func (s *state) resolveOutcome(ctx context.Context, encoded []byte, writes []taskqueue.Write, cause error) (int64, error) {
	s.log.WithError(cause).Warn("outcome of a commit unknown, reading back")
	until := s.time.Now().Add(s.lead.TTL())
	for wait := resendPause; ; wait = min(2*wait, resendPauseMax) {
		found, revision, err := s.readBack(ctx, until)
		if err != nil {
			return 0, fmt.Errorf("%w: read back: %w", taskqueue.ErrUnknownOutcome, err)
		}
		switch classifyOutcome(encoded, s.revision, found, revision) {
		case outcomeCommitted:
			return revision, nil
		case outcomeOver:
			return 0, fmt.Errorf("%w: stored state has changed", taskqueue.ErrFenced)
		}
		if s.givesUp(until) {
			return 0, fmt.Errorf("%w: still unknown %v later: %w", taskqueue.ErrUnknownOutcome, s.lead.TTL(), cause)
		}
		s.time.Sleep(ctx, wait)
		bounded, cancel := context.WithTimeout(ctx, commitTimeout)
		revision, err = s.lead.Commit(bounded, s.revision, encoded, writes)
		cancel()
		err = orFenced(ctx, err)
		if err == nil || errors.Is(err, taskqueue.ErrFenced) && ctx.Err() != nil {
			return revision, err
		}
		//guard:refusal-after-unknown-outcome
		cause = err
	}
}

const (
	resendPause    = 20 * time.Millisecond
	resendPauseMax = 320 * time.Millisecond
	readAgainPause = 50 * time.Millisecond
)

// givesUp reports whether an unknown outcome is not waited for any longer.
func (s *state) givesUp(until time.Time) bool {
	//guard:unknown-outcome-time-limit
	return !s.time.Now().Before(until) || s.stopping.Err() != nil
}

// readBack reads the stored state until the store answers, the lock is lost, or an unknown outcome is
// not waited for any longer.
func (s *state) readBack(ctx context.Context, until time.Time) ([]byte, int64, error) {
	for {
		bounded, cancel := context.WithTimeout(ctx, min(commitTimeout, s.lead.TTL()))
		release := context.AfterFunc(s.stopping, cancel)
		found, revision, err := s.lead.ReadState(bounded)
		release()
		cancel()
		if err == nil || errors.Is(err, taskqueue.ErrFenced) {
			return found, revision, err
		}
		if s.givesUp(until) {
			return nil, 0, err
		}
		s.time.Sleep(ctx, readAgainPause)
		select {
		case <-ctx.Done():
			return nil, 0, context.Cause(ctx)
		case <-s.lead.Lost():
			return nil, 0, taskqueue.ErrFenced
		default:
		}
	}
}

// reload returns to the stored state.
func (s *state) reload() error {
	if s.stored == nil {
		return fmt.Errorf("%w: the first state could not be written", taskqueue.ErrFenced)
	}
	q, err := s.decode(s.stored, *s.tables.Load())
	if err != nil {
		return err
	}
	//guard:restored-queue-continues
	q.Continue(s.queue)
	q.Hold(len(s.stored) > s.limit)
	s.queue = q
	return nil
}

func (s *state) decode(stored []byte, tables []*taskqueue.Table) (*taskqueue.Queue, error) {
	var snapshot taskqueue.Snapshot
	if err := s.store.Decode(stored, &snapshot, MaxStoredState); err != nil {
		return nil, fmt.Errorf("decode /task_queues: %w", err)
	}
	q, err := taskqueue.Restore(&snapshot, s.roster, tables, s.config.Queue)
	if err != nil {
		return nil, err
	}
	//guard:step-restored
	err = q.RestoreStep(s.step)
	//guard:round-after-refusal
	err = errors.Join(err, q.RestoreRound(s.round, s.model))
	//guard:strategy-after-refusal
	err = errors.Join(err, q.RestoreStrategy(s.strategy, s.statistics))
	//guard:population-after-refusal
	err = errors.Join(err, q.RestorePopulation(s.population))
	return q, err
}

// setStep sets the last step of the restored queue.
func (s *state) setStep(step []byte) error {
	s.step = step
	return s.queue.RestoreStep(step)
}

// publish lets the network APIs build tasks of newly registered datasets and appended segments.
func (s *state) publish() {
	have := *s.tables.Load()
	for n := 0; ; n++ {
		t := s.queue.Table(n)
		switch {
		case t == nil:
			return
		//guard:grown-table-published
		case n < len(have) && have[n] == t:
			continue
		}
		next := append([]*taskqueue.Table{}, have...)
		if n == len(have) {
			next = append(next, nil)
		}
		next[n] = t
		s.tables.Store(&next)
		have = next
	}
}
