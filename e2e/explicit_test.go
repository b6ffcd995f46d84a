package e2e

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"testing"
	"time"

	"trainmaster/master/mastertest"
	"trainmaster/taskqueue"
	"trainmaster/trainer"
)

// ringModel counts how often a ring of one trainer has trained each record. Its saved steps are files next to the data.
type ringModel struct {
	file   string
	step   uint64
	counts map[string]int
}

func (m *ringModel) path(step uint64) string { return fmt.Sprintf("%s.step-%d", m.file, step) }

// load reads a saved step. Step 0 is the empty model.
func (m *ringModel) load(step uint64) error {
	m.step, m.counts = step, map[string]int{}
	if step == 0 {
		return nil
	}
	text, err := os.ReadFile(m.path(step))
	if err != nil {
		return err
	}
	return json.Unmarshal(text, &m.counts)
}

// checkpoint saves the model and commits the step.
func (m *ringModel) checkpoint(ctx context.Context, c *trainer.Client) error {
	return c.Checkpoint(ctx, trainer.Checkpoint{
		Step: m.step,
		Save: func(context.Context) error {
			text, err := json.Marshal(m.counts)
			if err != nil {
				return err
			}
			return replaceFile(m.path(m.step), text)
		},
		Publish: func(context.Context) error { return replaceFile(m.file+".latest", strconv.AppendUint(nil, m.step, 10)) },
	})
}

// replaceFile writes a file atomically.
func replaceFile(path string, text []byte) error {
	if err := os.WriteFile(path+".part", text, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".part", path)
}

// countInRing runs a session of a ring of one trainer. It begins from the last committed step and saves every seventh step.
func countInRing(ctx context.Context, c *trainer.Client, file string) error {
	last, err := c.LastStep(ctx)
	if err != nil {
		return err
	}
	if last, err = c.Rollback(ctx, last.Step, last.Generation+1); err != nil {
		return err
	}
	m := &ringModel{file: file}
	if err := m.load(last.Step); err != nil {
		return err
	}
	var done *taskqueue.Task
	for {
		task, err := c.Next(ctx, done)
		done = nil
		switch {
		case errors.Is(err, trainer.ErrCommitFirst):
			if err := m.checkpoint(ctx, c); err != nil {
				return err
			}
			continue
		case errors.Is(err, trainer.ErrRollbackFirst):
			return trainer.ErrRolledBack
		case err != nil:
			return err
		}
		if err := m.train(ctx, c, task); err != nil {
			return err
		}
		done = task
	}
}

func (m *ringModel) train(ctx context.Context, c *trainer.Client, task *taskqueue.Task) error {
	if base := c.Base(task); base > 0 {
		if err := replaceFile(m.file+".base", strconv.AppendInt(nil, base, 10)); err != nil {
			return err
		}
	}
	for record, err := range c.Records(task) {
		if err != nil {
			return err
		}
		// Simulates the work on a record, so that the test can kill the trainer during a task.
		time.Sleep(time.Millisecond)
		m.counts[hex.EncodeToString(record)]++
		m.step++
		c.Applied(task, m.step, 1)
		if m.step%7 == 0 {
			if err := m.checkpoint(ctx, c); err != nil {
				return err
			}
		}
	}
	return nil
}

// The trainer and the master of a job with explicit commits are killed repeatedly. The last committed step contains each
// record of each pass once. The trainer uses LastStep, Rollback, Base, Applied and Checkpoint of the Go client.
func TestExplicitCommits(t *testing.T) {
	t.Parallel()
	const passes = 2
	c := newCounters(t)
	master := func() *process {
		return c.master("--passes", fmt.Sprint(passes), "--explicit-commit", "--session-ttl", "5s")
	}
	m, ring := master(), c.counter("a")
	c.awaitMidPass(1)
	step := uint64(0)
	committed := func() uint64 {
		state, _, _ := mastertest.State(t, c.store)
		return state.Exact.Committed
	}
	for round := range 6 {
		eventually(t, fmt.Sprintf("a step after %d is committed", step), func() (bool, string) {
			now := committed()
			return now > step+20, fmt.Sprint(now)
		})
		step = committed()
		if round%3 != 1 {
			ring.kill()
			ring = c.counter("a")
		}
		if round%3 != 0 {
			m.kill()
			m = master()
		}
	}
	ring.wantExit(0)
	m.wantExit(0)
	c.wantVerified(passes, countedRecords/countedChunk)
	latest, err := os.ReadFile(c.file + ".latest")
	if err != nil {
		t.Fatal(err)
	}
	if found := fmt.Sprint(committed()); found != string(bytes.TrimSpace(latest)) {
		t.Errorf("step %s is committed, %s was published last", found, latest)
	}
	model := &ringModel{file: c.file}
	if err := model.load(committed()); err != nil {
		t.Fatal(err)
	}
	wrong := 0
	for _, n := range model.counts {
		if n != passes {
			wrong++
		}
	}
	if len(model.counts) != countedRecords || wrong > 0 {
		t.Errorf("%d of %d records: expected each %d times in the last step; expected %d records", wrong, len(model.counts), passes, countedRecords)
	}
	if _, err := os.Stat(c.file + ".base"); errors.Is(err, fs.ErrNotExist) {
		t.Error("expected a task that continued after its base, found none")
	}
}
