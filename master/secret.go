package master

import (
	"context"
	"crypto/rand"
	"fmt"

	"trainmaster/taskqueue"
)

// jobSecret is the secret of the job. One that is not stored is written with the next commit
// of the term, so that it is fenced as the state is.
type jobSecret struct {
	taskqueue.Secret
	stored bool
}

// readSecret reads the secret of the job, or chooses one for a job that has none.
func readSecret(ctx context.Context, store Store) (jobSecret, error) {
	value, err := store.Value(ctx, taskqueue.SecretKey)
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
