package rounds_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"trainmaster/etcdstore/etcdtest"
	"trainmaster/master"
	"trainmaster/master/evaluation"
	"trainmaster/master/mastertest"
)

// Evaluation data that cannot be registered: a command is answered with the reason, and data that no attempt can register end the term.
func TestEvaluationDataThatIsNotRegistered(t *testing.T) {
	j := &job{t: t, store: etcdtest.Store(t), data: filepath.Join(t.TempDir(), "missing")}
	j.start()
	j.Register(4)
	mastertest.Eventually(t, "the reason of the registration", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := j.Evaluate(ctx, "")
		return errors.Is(err, evaluation.ErrNotRegistered) && strings.Contains(err.Error(), j.data)
	})
	if err := j.Stop(); err != nil {
		t.Fatal(err)
	}
	j.refused = master.Dataset{From: "--evaluation-data"}.Refused
	j.start()
	mastertest.Eventually(t, "the end of the master", j.Ended)
	if err := j.Wait(); !errors.Is(err, master.ErrBadDataset) || !strings.Contains(err.Error(), "--evaluation-data: ") {
		t.Errorf("the master ended with %v", err)
	}
}

// The evaluation data of a job is registered, and the next leader cannot read it: its rounds continue.
func TestLeaderWithoutTheEvaluationDataEvaluates(t *testing.T) {
	j := newJob(t, evaluation.Config{}, nil, 1)
	j.refused = master.Dataset{From: "--evaluation-data"}.Refused
	if err := j.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(j.data, j.data+".away"); err != nil {
		t.Fatal(err)
	}
	j.start()
	if err := j.Evaluate(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	j.train(1, "models/1")
	j.train(1, "models/2") // reports the first finish
	j.wantRecords("1 models/1@8 after pass 0 (command (version 8, 0 passes))")
}
