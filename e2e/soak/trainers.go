package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sync/errgroup"

	"trainmaster/etcdstore"
	"trainmaster/taskqueue"
	"trainmaster/trainer"
	"trainmaster/trainer/reference"
)

const roleTrainers = "trainers"

// trainers runs several trainers in one process. They read the records of their tasks and train nothing.
type trainers struct {
	IDs       []string
	Endpoints []string // of etcd
	Data      []string
	Journal   string
	TaskTime  time.Duration // mean duration of a task
}

// run returns nil when the job has ended, or when ctx has ended and all trainers have left.
func (t *trainers) run(ctx context.Context) error {
	store, err := etcdstore.OpenRetry(ctx, etcdstore.Config{Endpoints: t.Endpoints}, nil)
	if err != nil && ctx.Err() != nil {
		return nil // no trainer has joined
	}
	if err != nil {
		return err
	}
	defer store.Close()
	journal, err := os.OpenFile(t.Journal, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer journal.Close()
	following, stop := context.WithCancel(ctx)
	follow := trainer.NewFollow()
	var group errgroup.Group
	group.Go(func() error {
		for a := range store.WatchMasterAddr(following) {
			follow.Set(a.Addr, a.Term)
		}
		return nil
	})
	var working errgroup.Group
	for _, id := range t.IDs {
		working.Go(func() error {
			if err := t.train(ctx, trainer.Config{ID: id, Locate: follow}, journal); err != nil {
				return fmt.Errorf("trainer %s: %w", id, err)
			}
			return nil
		})
	}
	err = working.Wait()
	stop()
	return errors.Join(err, group.Wait())
}

// train runs sessions of a trainer until the job ends. After the loss of a session it joins again.
func (t *trainers) train(ctx context.Context, config trainer.Config, journal io.Writer) error {
	for {
		err := t.session(ctx, config, journal)
		switch {
		case errors.Is(err, io.EOF), ctx.Err() != nil:
			return nil
		case errors.Is(err, trainer.ErrSessionLost):
			logrus.WithField("trainer", config.ID).Info("session lost, joining again")
		default:
			return err
		}
	}
}

func (t *trainers) session(ctx context.Context, config trainer.Config, journal io.Writer) error {
	client, err := trainer.Join(ctx, config)
	if err != nil {
		return err
	}
	defer client.Close()
	if err := client.ReportDataset(ctx, t.Data); err != nil {
		return err
	}
	var done *taskqueue.Task
	for {
		task, err := client.Next(ctx, done)
		if err != nil {
			return err
		}
		entry := reference.Entry{
			Trainer: config.ID, Pass: task.Token.Pass, Position: task.Token.Position, Attempt: task.Token.Attempt, Index: task.Index,
		}
		for _, err := range client.Records(task) {
			if err != nil {
				return err
			}
			entry.Records++
		}
		select {
		case <-time.After(time.Duration(rand.Int64N(int64(2 * t.TaskTime)))):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		client.Progressed(entry.Records, 0)
		if err := note(journal, entry); err != nil {
			return err
		}
		done = task
	}
}

// note writes a line with one call, so that lines do not mix and a killed process leaves no partial line.
func note(journal io.Writer, entry reference.Entry) error {
	line, err := json.Marshal(entry)
	if err == nil {
		_, err = journal.Write(append(line, '\n'))
	}
	if err != nil {
		return fmt.Errorf("append to the journal: %w", err)
	}
	return nil
}
