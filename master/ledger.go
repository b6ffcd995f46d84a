package master

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"github.com/sirupsen/logrus"
	"time"

	"trainmaster/ledger"
	"trainmaster/master/component"
)

// Sealer moves the ledger from etcd to sealed files while a term lasts. *ledger.Sealer implements it.
type Sealer interface {
	// Check returns ledger.ErrElsewhere if this master does not see the sealed part of the ledger: it must not lead then. Other
	// errors mean that this is not known now. jobID is "" before the state is read.
	Check(ctx context.Context, jobID string) error
	// Run seals the ledger until the term ends. It handles failures of the ledger itself; the returned error means that the term is
	// over.
	Run(ctx context.Context, lock ledger.Lock, jobID string, progress func() ledger.Progress) error
	Status() ledger.Status
}

// sealing is the component that runs the sealer of the ledger.
type sealing struct {
	sealer            Sealer
	log               *logrus.Entry
	checking, running detached // calls of sealer
}

func newSealing(config Config) *sealing {
	return &sealing{sealer: config.Ledger, log: config.Log, checking: newDetached(sealingPart, config.Log), running: newDetached(sealingPart, config.Log)}
}

const sealingPart = "sealing of the ledger"

// Name implements [component.Component].
func (s *sealing) Name() string { return "sealing of the ledger" }

// Init compares the sealed ledger before the state is read.
func (s *sealing) Init(ctx context.Context) error { return s.check(ctx, "") }

// Prepare compares the sealed ledger with the job.
func (s *sealing) Prepare(ctx context.Context, t component.Term) error {
	id := t.JobID()
	return s.check(ctx, hex.EncodeToString(id[:]))
}

// check returns ErrOtherLedger or nil. An answer that is not known now does not keep a master from leading.
func (s *sealing) check(ctx context.Context, jobID string) error {
	bounded, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	err := s.checking.do(bounded, 0, func(ctx context.Context) error { return s.sealer.Check(ctx, jobID) })
	if errors.Is(err, ledger.ErrElsewhere) {
		return fmt.Errorf("%w: %w", ErrOtherLedger, err)
	}
	if err != nil {
		s.log.WithError(err).Warn("whether the ledger is where this master looks is not known")
	}
	return nil
}

// Run runs the sealer. It returns soon after the term has ended, also if the file system hangs: the leader must resign then.
func (s *sealing) Run(ctx context.Context, t component.Term) error {
	id := t.JobID()
	err := s.running.do(ctx, sealPatience, func(ctx context.Context) error {
		return s.sealer.Run(ctx, t.Lock(), hex.EncodeToString(id[:]), t.Progress)
	})
	if errors.Is(err, errHangs) {
		s.log.Warn("sealing did not end with the term: the file system of the ledger does not answer")
	}
	return err
}

const (
	checkTimeout = 5 * time.Second
	sealPatience = 2 * time.Second // for what sealing has begun when the term ends
)
