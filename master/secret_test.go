package master_test

import (
	"testing"

	"trainmaster/etcdstore"
	"trainmaster/etcdstore/etcdtest"
	"trainmaster/master"
	"trainmaster/master/mastertest"
	"trainmaster/taskqueue"
)

func storedSecret(t *testing.T, store *etcdstore.Store) (taskqueue.Secret, int64) {
	t.Helper()
	value, revision, err := store.Value(t.Context(), taskqueue.SecretKey)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := taskqueue.ParseSecret(value)
	if err != nil {
		t.Fatal(err)
	}
	return secret, revision
}

// The first term writes the secret, later terms keep it, and a job without a secret receives one.
func TestSecretIsWrittenOnceInAFencedTransaction(t *testing.T) {
	store := etcdtest.Store(t)
	term := func() {
		if err := mastertest.Start(t, store, master.Config{}).Stop(); err != nil {
			t.Fatal(err)
		}
	}
	term()
	secret, written := storedSecret(t, store)
	_, _, state := mastertest.State(t, store)
	if written != state || secret == (taskqueue.Secret{}) {
		t.Errorf("secret %x at revision %d, the first state at %d: expected one transaction", secret, written, state)
	}
	term()
	if again, revision := storedSecret(t, store); again != secret || revision != written {
		t.Errorf("next term: expected the same secret, found revision %d, then %d", written, revision)
	}
	if _, err := store.Client().Delete(t.Context(), store.Prefix()+taskqueue.SecretKey); err != nil {
		t.Fatal(err)
	}
	term()
	if another, _ := storedSecret(t, store); another == secret {
		t.Error("deleted secret: expected a new secret")
	}
}
