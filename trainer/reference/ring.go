package reference

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/pserver/floats"
	"trainmaster/trainer"
	"trainmaster/trainer/allreduce"
	"trainmaster/trainer/model"
	"trainmaster/trainer/rendezvous"
	"trainmaster/trainer/ring"
)

// Ring is how a Worker takes part in a ring.
type Ring struct {
	Listen string // host:port for the connections of other members
	Host   string // at which they reach it; "": the address of its connection to the master
	Config ring.Config
}

// leaveTimeout limits the calls of a member that ends.
const leaveTimeout = 3 * time.Second

// runRing trains by all-reduce until the job ends.
func (w *Worker) runRing(ctx context.Context, journal *Journal) error {
	before := w.savedModel()
	var current atomic.Pointer[currentModel]
	s := &supply{worker: w, ctx: ctx, current: &current, ended: make(chan struct{})}
	defer s.release()
	p, err := w.first(ctx, s)
	switch {
	case ctx.Err() != nil:
		return nil
	case errors.Is(err, io.EOF):
		w.Log.Info("job ended")
		return nil
	case errors.Is(err, trainer.ErrDrained):
		w.Log.Info("trainer drained")
		return nil
	case err != nil:
		return err
	}
	work, err := w.reduced(s, p, journal, &current)
	if err != nil {
		return err
	}
	//guard:ring-trainer-closes-its-files
	defer work.drop()
	isCurrent, version, err := w.member(ctx, work, s.client)
	switch {
	case errors.Is(err, trainer.ErrDrained):
		w.Log.Info("trainer drained")
		return nil
	case ctx.Err() != nil:
		return nil
	case err != nil:
		return err
	}
	digest := sha256.Sum256(floats.Bytes(work.replica.parameters))
	w.Log.WithFields(logrus.Fields{"version": version, "sha256": hex.EncodeToString(digest[:])}).Info("job ended")
	if !isCurrent {
		w.Log.Info("model not saved by this trainer: it was in no generation at the end of the job")
		return nil
	}
	if w.SavePath == "" {
		return nil
	}
	if s.settle(leaveTimeout); s.client == nil {
		return nil // another trainer has reported the last task, and has a session
	}
	return w.save(ctx, s.client, copied{tensors: work.replica.tensors, version: version}, nil, p.model, p.shape, p.described, before)
}

// first begins the first session, and makes the model. The first task, if it was taken, is the outcome of the first fetch.
func (w *Worker) first(ctx context.Context, s *supply) (p prepared, err error) {
	for {
		client, err := w.join(ctx, s.current)
		if err != nil {
			return p, err
		}
		s.client, s.began = client, time.Now()
		log := w.Log.WithFields(logrus.Fields{"ordinal": client.Ordinal(), "incarnation": client.Incarnation()})
		log.Info("joined")
		if client.Sync() || client.Cuts() || client.Explicit() {
			return p, errors.New("the job has synchronous steps or explicit commits of its own: expected a master without --ps, --update-mode sync and --explicit-commit for a training by all-reduce")
		}
		p, err = w.prepare(ctx, client, true, log)
		if errors.Is(err, trainer.ErrSessionLost) {
			if err := s.rivals.lost(w.Trainer.ID, s.began); err != nil {
				return p, err
			}
			log.Warn("the session was lost, joining again")
			s.close()
			continue
		}
		if err == nil && len(p.model.Tables()) > 0 {
			err = fmt.Errorf("model %s: %w", w.Kind, errTables)
		}
		if b, ok := p.tasks.(*begun); err == nil && ok && b.first != nil {
			s.fetched, s.cancel = make(chan supplied, 1), func() {}
			s.fetched <- supplied{task: b.first}
		}
		return p, err
	}
}

// reduced returns the work of a member.
func (w *Worker) reduced(s *supply, p prepared, journal *Journal, current *atomic.Pointer[currentModel]) (*reduced, error) {
	evaluated, err := model.New(w.Kind, p.shape)
	if err != nil {
		return nil, err
	}
	settings := fmt.Sprintf("%s with %d inputs, %d classes, %d hidden units, seed %d; %s; shuffle-records %d", w.Kind, p.shape.Inputs, p.shape.Classes, p.shape.Hidden, w.Seed, p.recipe.Optimizer, w.Trainer.ShuffleRecords)
	r := newReplica(settings, p.recipe.Optimizer, p.model.Parameters())
	t := &Trainer{ID: w.Trainer.ID, Model: p.model}
	t.state.set(r.tensors, 0)
	current.Store(&currentModel{t, Saved{Kind: w.Kind, Config: p.shape}, evaluated, nil, nil})
	return &reduced{
		supply: s, replica: r, model: p.model, batch: p.model.NewBatch(p.recipe.BatchSize), size: p.recipe.BatchSize,
		journal: journal, log: w.Log, state: &t.state,
	}, nil
}

// member takes part in the ring until the job ends.
func (w *Worker) member(ctx context.Context, work *reduced, client *trainer.Client) (isCurrent bool, version uint64, err error) {
	config := w.Ring.Config
	config.Log = w.Log
	endpoint, err := ring.Listen(w.Ring.Listen, client.Instance(), config)
	if err != nil {
		return false, 0, err
	}
	defer endpoint.Close()
	port := uint32(endpoint.Addr().(*net.TCPAddr).Port)
	seats := &memberships{ended: make(chan struct{}), client: &rendezvous.Client{
		Locate: w.Trainer.Locate, Job: w.Trainer.Job, Log: w.Log, Member: &pb.RingMember{Id: w.Trainer.ID, Host: w.Ring.Host, Ports: []uint32{port}, Processes: 1},
	}}
	attending, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() {
		seats.err = seats.client.Run(attending)
		close(seats.ended)
	})
	m := &allreduce.Member{
		Model: work.replica, Work: work, Rendezvous: seats, Endpoint: endpoint, Log: w.Log, Lock: &work.state.mu,
		Stepped: func(version uint64) { work.state.version = version },
	}
	isCurrent, err = m.Run(ctx)
	leaving, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
	if err == nil && isCurrent {
		_ = seats.client.Report(leaving, seats.Newest(), pb.RingOutcome_RING_OUTCOME_COMPLETED, "", "") // the master may have ended
	} else if leave := seats.client.Leave(leaving, "the trainer ends"); leave != nil {
		w.Log.WithError(leave).Debug("leave not sent to the ring")
	}
	cancel()
	stop()
	running.Wait()
	return isCurrent, m.Version(), err
}

// memberships are the memberships of a member. It implements [allreduce.Rendezvous].
type memberships struct {
	client *rendezvous.Client
	ended  chan struct{} // closes when the client has ended
	err    error         // why, after ended
}

// Next implements [allreduce.Rendezvous].
func (m *memberships) Next(ctx context.Context, after uint64, idle func()) (ms ring.Membership, err error) {
	isIdle := false
	err = m.await(ctx, func(u *pb.RingUpdate) bool {
		//guard:waiting-trainer-returns-task
		now := u.GetState() == pb.RingState_RING_STATE_PARKED || u.GetState() == pb.RingState_RING_STATE_WAITING
		if now && !isIdle {
			idle()
		}
		isIdle = now
		g := u.GetGeneration()
		if u.GetState() != pb.RingState_RING_STATE_MEMBER || g.GetNumber() <= after || g.GetEnded() {
			return false
		}
		ms = ring.Membership{Generation: g.Number, Rank: -1}
		for rank, member := range g.Members {
			if member.Id == m.client.Member.Id && member.Instance == m.client.Member.Instance {
				ms.Rank = rank
			}
			address := ""
			if len(member.Ports) > 0 {
				address = net.JoinHostPort(member.Host, strconv.Itoa(int(member.Ports[0])))
			}
			ms.Members = append(ms.Members, ring.Member{ID: member.Id, Address: address})
		}
		return ms.Rank >= 0
	})
	return ms, err
}

// await waits for an update.
func (m *memberships) await(ctx context.Context, wanted func(*pb.RingUpdate) bool) error {
	for {
		u, changed := m.client.Update()
		if wanted(u) {
			return nil
		}
		if u.GetState() == pb.RingState_RING_STATE_CLOSED {
			return io.EOF
		}
		select {
		case <-changed:
		case <-m.ended:
			if m.err == nil {
				return io.EOF
			}
			return fmt.Errorf("join the ring: %w", m.err)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Newest implements [allreduce.Rendezvous].
func (m *memberships) Newest() uint64 {
	u, _ := m.client.Update()
	return u.GetGeneration().GetNumber()
}

// Superseded implements [allreduce.Rendezvous].
func (m *memberships) Superseded(ctx context.Context, generation uint64) {
	if err := m.await(ctx, func(*pb.RingUpdate) bool { return m.Newest() > generation }); err != nil {
		<-ctx.Done() // no generation follows
	}
}

// Failed implements [allreduce.Rendezvous].
func (m *memberships) Failed(ctx context.Context, generation uint64, peer, reason string) {
	outcome := pb.RingOutcome_RING_OUTCOME_FAILED
	if peer != "" {
		outcome = pb.RingOutcome_RING_OUTCOME_PEER_FAILED
	}
	bounded, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	var watching sync.WaitGroup
	watching.Go(func() {
		m.Superseded(bounded, generation)
		cancel()
	})
	_ = m.client.Report(bounded, generation, outcome, peer, reason) // another generation is current, or another member reports
	cancel()
	watching.Wait()
}

// reportTimeout limits the report of a failure, for example without a leader. The member then waits for the next generation.
const reportTimeout = 15 * time.Second
