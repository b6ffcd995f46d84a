package committer

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/sirupsen/logrus"

	"trainmaster/master/store"
	"trainmaster/taskqueue"
)

// Recover reads the state that the previous term left, or begins a job that never ran, under a lock that is held. When ctx ends, the
// master is to stop: an unknown outcome ends the term then. cache has task tables that are read already; nil: none. answered is called
// when etcd answers, over when the term ends. A verdict on the stored state counts only while this master leads. The keys are read
// one by one, so a master that lost the lock can read them from different commits.
func Recover(ctx context.Context, lead store.Leadership, config Config, cache *TableCache, answered, onEnd func()) (*Committer, error) {
	s, err := readOrBegin(ctx, lead, config, cache, answered)
	//guard:interrupted-recovery-is-not-damage
	if Fatal(err) {
		if _, _, lost := lead.ReadState(ctx); lost != nil {
			return nil, fmt.Errorf("the state was read while the term ended: %w", lost)
		}
	}
	if err != nil {
		return nil, err
	}
	if err := s.begin(ctx); err != nil {
		return nil, err
	}
	s.jobID = s.queue.JobID()
	return newCommitter(s, onEnd), nil
}

// begin commits once before the first answer. A standby regards a leader that never committed as unable to commit, and
// takes over without a holddown. If the store rejects writes now, the term continues: callers receive that error.
func (s *state) begin(ctx context.Context) error {
	if s.revision > s.lead.Revision() {
		return nil // it was, to begin the job or to renew the state
	}
	s.queue.Touch()
	err := s.save(ctx, s.queue.Ready())
	if err == nil || Terminal(err) {
		return err
	}
	s.log.WithError(err).Error("the first commit of the term was refused, nothing was written")
	return s.reload()
}

// readOrBegin reads what the term before left, or begins a job that never ran. Nothing is
// ever begun over a state that cannot be read.
func readOrBegin(ctx context.Context, lead store.Leadership, config Config, kept *TableCache, answered func()) (*state, error) {
	store, log, began := config.Store, config.Log, config.Clock.Now()
	s := &state{store: store, lead: lead, config: config, log: log, time: config.Clock, written: began, stopping: ctx, limit: MaxStateBytes, roster: map[string][]byte{}, answered: answered}
	s.tables.Store(&[]*taskqueue.Table{})
	cluster, err := store.ClusterID(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the cluster id: %w", err)
	}
	stored, revision, err := readState(ctx, store, lead)
	if err != nil {
		return nil, err
	}
	if s.secret, err = readSecret(ctx, store); err != nil {
		return nil, err
	}
	if revision == 0 {
		//guard:remains-refused
		if err := refuseRemains(ctx, store); err != nil {
			return nil, err
		}
		var id [16]byte
		if _, err := rand.Read(id[:]); err != nil {
			return nil, fmt.Errorf("choose a job id: %w", err)
		}
		s.queue = taskqueue.New(config.Job, id, cluster, config.Queue)
		if err := errors.Join(s.readStep(ctx), s.readStrategy(ctx)); err != nil {
			return nil, err
		}
		if err := s.save(ctx, s.queue.Ready()); err != nil {
			return nil, err
		}
		return s, nil
	}
	var snapshot taskqueue.Snapshot
	if err := store.Decode(stored, &snapshot, MaxStoredState); err != nil {
		return nil, fmt.Errorf("%w: decode /task_queues: %w; its bytes are left as they are: restore a backup, or start the job under another name", taskqueue.ErrDamaged, err)
	}
	format, err := snapshot.Upgrade()
	if err != nil {
		return nil, err
	}
	moved := snapshot.Cluster != cluster
	//guard:cluster-compared
	if moved && !config.AcceptCluster {
		return nil, fmt.Errorf("%w: expected cluster %x, found %x: etcd was restored or replaced; to continue from this state, start with --accept-cluster", ErrForeign, snapshot.Cluster, cluster)
	}
	snapshot.Cluster = cluster
	tables, err := loadTables(ctx, store, &snapshot, kept)
	if err != nil {
		return nil, err
	}
	if s.roster, err = store.Roster(ctx); err != nil {
		return nil, fmt.Errorf("read the roster: %w", err)
	}
	if s.queue, err = taskqueue.Restore(&snapshot, s.roster, tables, config.Queue); err != nil {
		return nil, err
	}
	if err := errors.Join(s.readStep(ctx), s.readRound(ctx), s.readStrategy(ctx)); err != nil {
		return nil, err
	}
	s.stored, s.revision = stored, revision
	s.committed(snapshot.Commit)
	s.tables.Store(&tables)
	s.queue.Hold(len(stored) > s.limit)
	//guard:upgrade-stored
	if moved || format < taskqueue.Format {
		if err := s.renew(ctx, moved, format); err != nil {
			return nil, err
		}
	}
	log.WithFields(logrus.Fields{
		"commit": snapshot.Commit, "datasets": len(tables), "trainers": len(s.roster), "took": s.since(began).Round(time.Millisecond).String(),
	}).Info("state recovered")
	return s, nil
}

// readStep reads the last synchronous step.
func (s *state) readStep(ctx context.Context) error {
	if !s.config.Sync {
		return nil
	}
	step, _, err := s.store.Value(ctx, taskqueue.StepKey)
	if err != nil {
		return fmt.Errorf("read %s: %w", taskqueue.StepKey, err)
	}
	return s.setStep(step)
}

// readRound reads the decisions about evaluation rounds, the newest round and the newest model.
func (s *state) readRound(ctx context.Context) (err error) {
	if s.evaluation, _, err = s.store.Value(ctx, taskqueue.EvaluationKey); err != nil {
		return fmt.Errorf("read %s: %w", taskqueue.EvaluationKey, err)
	}
	if s.round, _, err = s.store.Value(ctx, taskqueue.RoundKey); err != nil {
		return fmt.Errorf("read %s: %w", taskqueue.RoundKey, err)
	}
	if s.model, _, err = s.store.Value(ctx, taskqueue.ModelKey); err != nil {
		return fmt.Errorf("read %s: %w", taskqueue.ModelKey, err)
	}
	//guard:round-restored
	return s.queue.RestoreRound(s.round, s.model)
}

// readStrategy reads the state of the strategy.
func (s *state) readStrategy(ctx context.Context) (err error) {
	if err := CheckStrategy(ctx, s.store, s.config.Queue.Strategy); err != nil || s.config.Queue.Strategy == nil {
		return err
	}
	if s.strategy, _, err = s.store.Value(ctx, taskqueue.StrategyKey); err != nil {
		return fmt.Errorf("read %s: %w", taskqueue.StrategyKey, err)
	}
	if s.statistics, _, err = s.store.Value(ctx, taskqueue.StatisticsKey); err != nil {
		return fmt.Errorf("read %s: %w", taskqueue.StatisticsKey, err)
	}
	if s.population, _, err = s.store.Value(ctx, taskqueue.PopulationKey); err != nil {
		return fmt.Errorf("read %s: %w", taskqueue.PopulationKey, err)
	}
	return errors.Join(s.queue.RestoreStrategy(s.strategy, s.statistics), s.queue.RestorePopulation(s.population))
}

// CheckStrategy returns store.ErrOtherJob if a job has another strategy. A job without a strategy accepts one.
func CheckStrategy(ctx context.Context, from store.Store, mine *taskqueue.Strategy) error {
	file, _, err := from.Value(ctx, taskqueue.StrategyFileKey)
	//guard:strategy-of-the-job
	switch {
	case err != nil:
		return fmt.Errorf("read %s: %w", taskqueue.StrategyFileKey, err)
	case file != nil && mine == nil:
		return fmt.Errorf("%w: --strategy: expected the strategy file of the job, found none: %s in etcd has it", store.ErrOtherJob, taskqueue.StrategyFileKey)
	case file != nil && !bytes.Equal(file, mine.File):
		return fmt.Errorf("%w: --strategy: expected the strategy file with which the job began, found another one (line %d differs): %s in etcd has it", store.ErrOtherJob, firstDifference(file, mine.File), taskqueue.StrategyFileKey)
	}
	return nil
}

// firstDifference returns the number of the first line that differs.
func firstDifference(a, b []byte) int {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return 1 + bytes.Count(a[:n], []byte("\n"))
}

// readState reads the stored state; revision 0 says that the job is still to be begun.
func readState(ctx context.Context, store store.Store, lead store.Leadership) (stored []byte, revision int64, err error) {
	for look := range 2 { // a restore may end between two looks
		if stored, revision, err = lead.ReadState(ctx); err != nil {
			return nil, 0, fmt.Errorf("read /task_queues: %w", err)
		}
		if revision != 0 || look > 0 {
			break
		}
		restoring, _, err := store.Value(ctx, taskqueue.RestoringKey)
		switch {
		case err != nil:
			return nil, 0, fmt.Errorf("read %s: %w", taskqueue.RestoringKey, err)
		case restoring != nil:
			return nil, 0, errRestoring
		}
	}
	return stored, revision, nil
}

// errRestoring ends a term but not the master, because the restore may continue.
var errRestoring = errors.New("the job is being restored from a backup, or the restore was interrupted: run master snapshot restore with the same file again")

// renew stores a state that is not as this master found it before anything else is done with
// it: once, not at every start.
func (s *state) renew(ctx context.Context, moved bool, format int) error {
	s.queue.Touch()
	if err := s.save(ctx, s.queue.Ready()); err != nil {
		return fmt.Errorf("store the state in format %d: %w", taskqueue.Format, err)
	}
	if moved {
		s.log.Warn("a state of another etcd cluster was accepted")
	}
	if format < taskqueue.Format {
		s.log.WithFields(logrus.Fields{"from": format, "to": taskqueue.Format}).Info("the state was upgraded")
	}
	return nil
}

// refuseRemains reports an error if a job without a state once had a state. The state was then deleted, and a new one
// would overwrite the remaining keys.
func refuseRemains(ctx context.Context, store store.Store) error {
	roster, err := store.Roster(ctx)
	if err != nil {
		return fmt.Errorf("read the roster: %w", err)
	}
	const first = 2 // first commit with events: the commit before it writes the empty state
	ledger, _, err := store.Value(ctx, taskqueue.LedgerKey(first))
	if err != nil {
		return fmt.Errorf("read the ledger: %w", err)
	}
	if ledger == nil {
		if ledger, _, err = store.Value(ctx, taskqueue.SealedKey); err != nil {
			return fmt.Errorf("read how far the ledger is sealed: %w", err)
		}
	}
	if len(roster) > 0 || ledger != nil {
		return fmt.Errorf("%w: /task_queues is gone, but a ledger or %d trainers of the job exist; nothing was changed: restore a backup of etcd, or start the job under another name", taskqueue.ErrDamaged, len(roster))
	}
	return nil
}
