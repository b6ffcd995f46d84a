package master

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	"net/http"
	"trainmaster/dataset"
	"trainmaster/master/committer"
	"trainmaster/master/component"
	"trainmaster/master/election"
	"trainmaster/master/pscontrol"
	"trainmaster/master/store"
)

// Master leads a job whenever it holds the lock. Its methods may be called at any time;
// without the lock they return ErrNotLeader.
type Master struct {
	config   Config
	reports  reporter
	current  atomic.Pointer[term]
	jobID    atomic.Pointer[[16]byte] // nil before the first term
	election *election.Election
	tables   atomic.Pointer[committer.TableCache] // of a standby; nil: none is loaded
	warm     atomic.Bool
	ended    atomic.Pointer[chan struct{}] // closes when the current or the next term ends

	unused     *unusedParts
	components []component.Component
	notLeading atomic.Value // string: why this master does not lead
}

// waits stores the reason why this master does not lead. Status returns it until the master leads.
func (m *Master) waits(reason string) {
	m.notLeading.Store(reason)
	m.config.Log.WithField("reason", reason).Info("waiting for the lock")
}

// New returns a master that does nothing until Run.
func New(config Config) (*Master, error) {
	config = config.withDefaults()
	if err := config.Validate(); err != nil {
		return nil, err
	}
	switch hasNone := config.Servers == nil; {
	case hasNone && config.Sync:
		return nil, errors.New("synchronous steps need parameter servers")
	case hasNone && config.Queue.Cuts:
		return nil, errors.New("cuts need parameter servers")
	case hasNone:
		config.Servers = pscontrol.New(pscontrol.Config{})
	}
	m := &Master{config: config, election: election.New(election.Config{
		Store: config.Store, Log: config.Log, Address: config.Advertise, LeaseTTL: config.LeaseTTL, Holddown: config.Holddown,
	})}
	ended := make(chan struct{})
	m.ended.Store(&ended)
	m.reports.one, m.reports.source = newDetached("files of the datasets", config.Log), dataset.Source{Roots: config.Roots}
	m.unused = &unusedParts{log: config.Log}
	if config.seals() {
		m.components = append(m.components, newSealing(config))
	}
	m.components = append(m.components, config.Components...)
	if len(config.Datasets) > 0 {
		m.components = append(m.components, &datasets{config, m.ReportSet, func(ctx context.Context, d Dataset) (Appended, error) {
			t, err := m.leading()
			if err != nil {
				return Appended{}, err
			}
			return m.appendNew(ctx, t, d, false)
		}})
	}
	m.components = append(m.components, m.unused, &jobEnd{linger: config.Linger, before: config.Servers.LastCheckpoint})
	return m, nil
}

// TermDone returns a channel that closes when the current term ends, or the next term if this master does not lead. The interfaces close
// the connections of trainers then, so that the trainers look for the next leader.
func (m *Master) TermDone() <-chan struct{} { return *m.ended.Load() }

// Run campaigns and leads, term after term. It returns nil if the job has ended and its trainers have been informed, or
// if ctx is canceled, after a last commit and resignation. It returns ErrJobFailed if the job failed, and another error
// if no term can use the state.
func (m *Master) Run(ctx context.Context) error {
	// Each term checks again. Without this check, a standby would find the error only when it leads.
	if err := m.config.Store.EnsureJob(ctx, m.config.Job, m.config.Settings()); fatal(err) {
		return err
	}
	if err := committer.CheckStrategy(ctx, m.config.Store, m.config.Queue.Strategy); fatal(err) {
		return err
	}
	for _, part := range m.components {
		if err := part.Init(ctx); err != nil {
			return err
		}
	}
	asking, stopAsking := context.WithCancel(ctx)
	var pulse sync.WaitGroup
	defer pulse.Wait()
	defer stopAsking()
	pulse.Go(func() { m.election.KeepFresh(asking) })
	clock, rest, reason := component.MachineClock{}, termPause, ""
	for {
		lead, kept, err := m.campaign(ctx)
		if err != nil {
			switch {
			case ctx.Err() != nil:
				return nil
			case fatal(err):
				return err
			}
			return fmt.Errorf("campaign: %w", err)
		}
		began := clock.Now()
		err = component.Contain(m.config.Log, "term", func() error { return m.lead(ctx, lead, kept) })
		//guard:stop-resigns-term
		resignTerm(lead)
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil, errors.Is(err, ErrJobFailed), fatal(err):
			return err
		}
		m.notLeading.Store(err.Error())
		m.config.Log.WithError(err).Warn("term over, campaigning again")
		panicked, previous := errors.Is(err, component.ErrPanic), reason
		reason = strings.TrimPrefix(err.Error(), ErrNotLeader.Error()+": ") // another component can notice the end of the term first
		lasted := clock.Now().Sub(began)
		if lasted > panicPauseMax || !panicked && (reason != previous || lasted >= samePauseMax) {
			rest = termPause
		}
		//guard:pause-after-same-error
		if !panicked {
			rest = min(rest, samePauseMax)
		}
		clock.Sleep(ctx, rest)
		//guard:panic-pause-doubles
		rest = min(2*rest, panicPauseMax)
	}
}

// campaign waits for the lock as a standby. It returns the task tables that it loaded during the wait. If this master has other files of a
// dataset than the job, campaign returns ErrOtherJob.
func (m *Master) campaign(ctx context.Context) (store.Leadership, *committer.TableCache, error) {
	ctx, refuse := context.WithCancelCause(ctx)
	defer refuse(nil)
	compared := comparison{config: m.config, begun: map[string]bool{}, refuse: refuse}
	lead, err := m.election.Campaign(ctx, m.waits, func(ctx context.Context, v store.Version) error { return m.followState(ctx, v, compared) })
	m.warm.Store(false)
	if cause := context.Cause(ctx); err != nil && fatal(cause) {
		err = cause
	}
	return lead, m.tables.Swap(nil), err
}

// followState loads the task tables that the stored state names, and compares the files of new datasets with the files that this master
// finds.
func (m *Master) followState(ctx context.Context, v store.Version, compared comparison) error {
	next, commit, isNew, err := m.tables.Load().Next(ctx, m.config.Store, v.State)
	if err != nil {
		return err
	}
	m.tables.Store(next) // a takeover during the comparison uses them
	if isNew {
		if err := compared.run(ctx, next); err != nil {
			return err
		}
		m.warm.Store(true)
		m.config.Log.WithFields(logrus.Fields{"datasets": next.Len(), "commit": commit}).Info("standby is warm")
	}
	return nil
}

// Leader returns the address of another master that leads or is the next leader; "": none is known.
func (m *Master) Leader() string { return m.election.Leader() }

// ServeHeartbeats sends heartbeats to standbys, at [election.HeartbeatPath] of the trainer port.
func (m *Master) ServeHeartbeats(w http.ResponseWriter, r *http.Request) {
	m.election.ServeHeartbeats(w, r)
}

const (
	termPause = 200 * time.Millisecond // between two terms of this master
	// Limit of the pause after a panic. The pause doubles with each term that panics before it has lasted as long: in
	// the pause, another master may lead. A defect that every term meets then does not use up the machine and etcd.
	panicPauseMax = 30 * time.Second
	// Limit of the pause after a term with the error of the term before it: a damaged value in etcd ends each term. A term that lasts as
	// long resets the pause. The limit is lower than the limit after panics: after an outage of etcd, the job waits for it.
	samePauseMax = 5 * time.Second
)

// fatal reports whether every further term would meet an error again.
func fatal(err error) bool {
	return committer.Fatal(err) || errors.Is(err, ErrOtherJob) || errors.Is(err, ErrOtherLedger) || errors.Is(err, ErrBadDataset)
}

// resignTerm releases the lock so that the next master can lead immediately.
func resignTerm(lead store.Leadership) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	//guard:resign-on-stop
	_ = lead.Resign(ctx) // else the lease runs out
}

func (m *Master) leading() (*term, error) {
	if t := m.current.Load(); t != nil {
		return t, nil
	}
	return nil, ErrNotLeader
}

// Warm reports whether this master is a standby with the task tables loaded, and with the files of the job as far as it has found.
func (m *Master) Warm() bool { return m.warm.Load() }

// Leading reports whether this master leads, and that was announced.
func (m *Master) Leading() bool {
	t := m.current.Load()
	return t != nil && t.announced.Load()
}

// HasTrainingService reports whether the master serves the gRPC service Coordinator.
func (m *Master) HasTrainingService() bool { return !m.config.NoTrainingService }

// JobID returns the id of the job in hexadecimal digits; "" before the first term.
func (m *Master) JobID() string {
	id := m.jobID.Load()
	if id == nil {
		return ""
	}
	return hex.EncodeToString(id[:])
}

// Job returns the name of the job.
func (m *Master) Job() string { return m.config.Job }
