package committer

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"trainmaster/master/store"
	"trainmaster/taskqueue"
)

// jobSecret is the secret of the job. A secret that is not stored is written with the next commit of the term, so that
// it is fenced like the state.
type jobSecret struct {
	taskqueue.Secret
	stored bool
}

// readSecret reads the secret of the job, or chooses one for a job that has none.
func readSecret(ctx context.Context, store store.Store) (jobSecret, error) {
	value, _, err := store.Value(ctx, taskqueue.SecretKey)
	if err != nil {
		return jobSecret{}, fmt.Errorf("read %s: %w", taskqueue.SecretKey, err)
	}
	if value != nil {
		secret, err := taskqueue.ParseSecret(value)
		return jobSecret{secret, true}, err
	}
	var s jobSecret
	if _, err := rand.Read(s.Secret[:]); err != nil {
		return s, fmt.Errorf("choose the secret of the job: %w", err)
	}
	return s, nil
}

// provenCommit is the number of a commit with what proves that a master of the job said it.
type provenCommit struct {
	number uint64
	proof  []byte // nil: the secret is not stored yet
}

// commitProofSize is the size of a truncated HMAC-SHA256 in bytes.
const commitProofSize = 16

// committed notes the number of the last commit.
func (s *state) committed(number uint64) {
	s.number.Store(number)
	p := &provenCommit{number: number}
	if s.secret.stored {
		p.proof = s.prove(number)
	}
	s.proven.Store(p)
}

// prove returns the proof of a commit number: its MAC, with the id of the job, under a key of the secret.
func (s *state) prove(number uint64) []byte {
	key, job := s.secret.Derive("commit number"), s.queue.JobID()
	mac := hmac.New(sha256.New, key[:])
	mac.Write(job[:])
	mac.Write(binary.BigEndian.AppendUint64(nil, number))
	return mac.Sum(nil)[:commitProofSize]
}

// proves reports whether a proof matches a commit number.
func (s *state) proves(number uint64, proof []byte) bool {
	return s.secret.stored && hmac.Equal(proof, s.prove(number))
}
