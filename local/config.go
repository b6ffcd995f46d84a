package local

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sirupsen/logrus"

	"trainmaster/dataset"
	"trainmaster/dataset/convert"
	"trainmaster/pserver/optimizer"
	"trainmaster/trainer"
	"trainmaster/trainer/model"
	"trainmaster/trainer/reference"
)

// The values of Config.OnTrainerLoss.
const (
	Rewind  = "rewind"  // the job rolls back
	Retrain = "retrain" // the lost trainer's task alone is trained again
)

// Config describes a run. Binary and Dir have no default.
type Config struct {
	Binary string // the program `master`
	Dir    string // directory for the files of this run

	Dataset  string // default digits; the binary contains digits and flights
	Data     string // prefix or glob of the user's own shards, instead of Dataset
	MNIST    string // directory with MNIST's four idx files, for that dataset
	Model    string // default softmax, of flights fm
	Passes   int    // default: chosen by the data
	Masters  int    // one leader, the others are standbys; default 1
	Servers  int    // parameter servers; default 2
	Trainers int    // default 3

	MaxRelaunch int // charged restarts of a trainer or a parameter server, beyond which the run fails

	Sync bool
	Seed uint64 // of the order of passes and the initial parameters; the split has a seed of its own

	Backups       int  // trainers that a synchronous step does not wait for
	Deterministic bool // two runs agree bit by bit, with Sync

	// Command is the program and the arguments of the user's own trainers; empty: the built-in trainer. With a Command, the job has
	// parameter servers only if Servers is set, and no model is evaluated.
	Command []string

	Optimizer optimizer.Config // the data chooses the zero fields
	WireDType string           // of gradients and parameters in messages; "": float32
	Exchange  reference.Exchange
	Protocol  trainer.Protocol // between trainers and masters; "": trainer.GRPC

	Evaluation []string // flags of the masters for evaluation rounds
	Strategy   []byte   // strategy file of the job; nil: none. A resumed run has its own copy

	// Population is set if the strategy has one. Built-in trainers then have models of their own, without parameter servers.
	Population bool

	CheckpointEvery time.Duration     // default 2 s
	OnTrainerLoss   string            // of a synchronous run: Rewind or Retrain; default Retrain, with Deterministic Rewind
	Resume          bool              // continue the run in Dir
	Settings        map[string]string // stored in Dir for a resumed run
	Journal         bool              // trainers write their tasks to journal.jsonl
	Drillable       bool              // put a proxy between each master and etcd, for `master drill`
	Log             *logrus.Entry
}

// Validate sets the defaults and returns an error for an invalid setting, also if only a trainer would reject it.
func (c *Config) Validate() error {
	if c.Masters == 0 {
		c.Masters = 1
	}
	if c.Trainers == 0 {
		c.Trainers = 3
	}
	if c.CheckpointEvery == 0 {
		c.CheckpointEvery = 2 * time.Second
	}
	if c.Data == "" {
		c.Dataset = cmp.Or(c.Dataset, model.Digits)
	}
	if len(c.Command) > 0 {
		return c.validateOwn()
	}
	like := c.Dataset
	if c.Data != "" {
		var err error
		if like, err = c.takeShape(); err != nil {
			return err
		}
	}
	c.Model = cmp.Or(c.Model, DefaultModel(like))
	if c.Servers == 0 && !c.Population {
		c.Servers = 2
	}
	if c.Population && model.OfCategories(c.Model) {
		return fmt.Errorf("--model %s: expected softmax or mlp with a population: the rows of tables are on parameter servers", c.Model)
	}
	if c.Masters < 0 || c.Servers < 0 || c.Trainers < 0 || c.Passes < 0 {
		return fmt.Errorf("expected at least one master, parameter server, trainer and pass, found %d, %d, %d and %d", c.Masters, c.Servers, c.Trainers, c.Passes)
	}
	if _, err := (reference.Recipe{Optimizer: c.Optimizer, Exchange: c.Exchange}).Complete(c.Model, like, c.Sync); err != nil {
		return err
	}
	recipe, err := model.RecipeFor(c.Model, like, c.Sync)
	if err != nil {
		return err
	}
	c.Passes = cmp.Or(c.Passes, recipe.Passes)
	return nil
}

// validateOwn is Validate for a run with own trainers.
func (c *Config) validateOwn() error {
	if dataset.IsRange(c.Data) {
		if _, err := dataset.ParseRange(c.Data); err != nil {
			return fmt.Errorf("--data: %w", err)
		}
	} else if c.Data != "" && !c.Resume {
		if _, _, err := convert.Resolve(context.Background(), c.Data); err != nil {
			return err
		}
	}
	c.Passes = cmp.Or(c.Passes, 1)
	switch {
	case c.Masters < 0 || c.Servers < 0 || c.Trainers < 0 || c.Passes < 0:
		return fmt.Errorf("expected at least one master, trainer and pass, and 0 or more parameter servers, found %d, %d, %d and %d", c.Masters, c.Trainers, c.Passes, c.Servers)
	case c.Servers == 0 && c.Sync:
		return errors.New("--update-mode sync: expected parameter servers: add --ps 1 or more")
	case c.OnTrainerLoss == Retrain && c.Deterministic:
		return errors.New("--on-trainer-loss: expected rewind with --deterministic, found retrain")
	}
	return nil
}

// DefaultModel returns the default model of a dataset.
func DefaultModel(dataset string) string {
	if dataset == model.Flights {
		return model.FM
	}
	return model.Softmax
}

// DataName returns the name of the data for messages.
func (c *Config) DataName() string {
	if c.Data != "" {
		return c.Data
	}
	return map[string]string{model.MNIST: "MNIST", model.Digits: "the digits", model.Flights: "the flights"}[c.Dataset]
}
