package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/sirupsen/logrus"

	"trainmaster/etcdstore"
	"trainmaster/taskqueue"
	"trainmaster/trainer"
)

// Environment variables of a trainer of the user that are no settings.
const (
	TrainerVariable = settingsPrefix + "TRAINER" // name of the trainer
	BinaryVariable  = settingsPrefix + "BIN"     // path of this program, which the Python package starts as its agent
)

// ownEnvironment returns the environment variables that describe the job to a trainer of the user.
func (j *Job) ownEnvironment(name string) []string {
	env := []string{"TRAINMASTER_ADDR=" + j.gate.addr(), "TRAINMASTER_JOB=default", TrainerVariable + "=" + name, BinaryVariable + "=" + j.config.Binary}
	// Also without parameter servers: a trainer that starts after the masters have left finds the end of the job in etcd.
	//guard:late-trainer-finds-the-end
	env = append(env, "TRAINMASTER_ENDPOINTS="+j.endpoint)
	if j.config.Protocol != "" {
		env = append(env, "TRAINMASTER_PROTOCOL="+string(j.config.Protocol))
	}
	return env
}

// leaveTimeout is the time that trainers are given after the end of the job.
func (j *Job) leaveTimeout() time.Duration {
	if j.gate == nil {
		return leaveTimeout
	}
	return ownLeaveTimeout
}

// errNoTrainers: the user's trainers ended before the job.
var errNoTrainers = errors.New("all trainers exited with code 0 before the end of the job: a trainer must take tasks until the master reports the end")

// superviseOwn reports the dataset for the user's trainers, and stops the run if all of them end before the job does. wait
// returns the error of either. With built-in trainers it does nothing.
func (j *Job) superviseOwn(training context.Context, left <-chan struct{}, stop func()) (wait func() error) {
	if j.gate == nil {
		return func() error { return nil }
	}
	failed := make(chan error, 1)
	go func() {
		err := j.followOwn(training, left)
		if training.Err() != nil {
			err = nil // another error, or an interrupt, ended the run
		}
		if err != nil {
			stop()
		}
		failed <- err
	}()
	return func() error { return <-failed }
}

func (j *Job) followOwn(training context.Context, left <-chan struct{}) error {
	quiet := logrus.New()
	quiet.SetOutput(io.Discard) // there is no master at first
	config := trainer.Config{Locate: trainer.At(j.gate.addr()), Protocol: j.config.Protocol, Log: logrus.NewEntry(quiet)}
	if err := trainer.ReportDataset(training, config, j.data.Train.Paths); err != nil {
		return err
	}
	select {
	case <-training.Done():
		return nil
	case <-left:
	}
	if training.Err() != nil {
		return nil
	}
	store, err := etcdstore.Open(training, etcdstore.Config{Endpoints: []string{j.endpoint}})
	if err != nil {
		return err
	}
	defer store.Close()
	state, err := readState(training, store)
	if err != nil || state.Status == taskqueue.Ended || state.Status == taskqueue.Failed {
		return err
	}
	return fmt.Errorf("%w; the output of the first trainer is in %s", errNoTrainers, j.trainers[0].Log)
}
