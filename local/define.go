package local

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"trainmaster/local/drill"
	"trainmaster/master/podmanager/processes"
)

// putProxies puts a proxy between each master and etcd. stop ends them.
func (j *Job) putProxies(ctx context.Context, scene *drill.Scene) (stop func(), err error) {
	scene.Secret = rand.Text()
	proxies, err := drill.NewProxies(scene.Secret)
	if err != nil {
		return nil, err
	}
	scene.Control = proxies.Control()
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan struct{})
	stop = func() { cancel(); <-ended }
	j.proxied = map[string]string{}
	for i := range j.config.Masters {
		addr, addErr := proxies.Add(masterName(i), strings.TrimPrefix(j.endpoint, "http://"))
		err = errors.Join(err, addErr)
		j.proxied[masterName(i)] = "http://" + addr
	}
	go func() {
		defer close(ended)
		if err := proxies.Run(running); err != nil {
			j.config.Log.WithError(err).Warn("proxies of etcd failed; drills of etcd are unavailable")
		}
	}()
	if err != nil {
		stop()
	}
	return stop, err
}

// settingsPrefix is the prefix of settings in the environment. They apply to `master run` and
// not to its children, which get flags.
const settingsPrefix = "TRAINMASTER_"

const (
	stopTimeout = 15 * time.Second
	// A parameter server waits up to 30 s for its last checkpoint set.
	serverStopTimeout = 40 * time.Second
)

// ExitSetAside is the exit code of a master whose job ended without the tasks that are set aside.
const ExitSetAside = 4

// exitStore is the exit code of this program if etcd or the master cannot be reached.
const exitStore = 3

// StrategyPath returns the path of the strategy file in the directory of a run.
func StrategyPath(dir string) string { return filepath.Join(dir, "strategy.yaml") }

// masterName returns the name of a master. The first master has no number.
func masterName(i int) string {
	if i == 0 {
		return "master"
	}
	return fmt.Sprintf("master-%d", i)
}

// define sets the processes and their arguments.
func (j *Job) define() {
	c := j.config
	env := slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, settingsPrefix) })
	child := func(name string, args ...string) processes.Process {
		return processes.Process{
			Name: name, Path: c.Binary, Args: append(args, "--endpoints", cmp.Or(j.proxied[name], j.endpoint)), Env: env, Log: j.path("logs", name+".log"), Grace: stopTimeout,
			Temporary: []int{exitStore},
		}
	}
	update := "async"
	if c.Sync {
		update = "sync"
	}
	checkpointEvery := c.CheckpointEvery.String()
	if c.Servers == 0 {
		checkpointEvery = "never"
	}
	for i := range c.Masters {
		one := child(masterName(i), "--listen", "127.0.0.1:0", "--http", "", "--own-etcd", "--lease-ttl", "2s", "--linger", linger,
			"--ps", strconv.Itoa(c.Servers), "--trainers", strconv.Itoa(c.Trainers), "--passes", strconv.Itoa(c.Passes),
			"--update-mode", update, "--backup-workers", strconv.Itoa(c.Backups),
			"--deterministic="+strconv.FormatBool(c.Deterministic), "--checkpoint-every", checkpointEvery, "--seed", strconv.FormatUint(c.Seed, 10))
		if c.OnTrainerLoss != "" {
			one.Args = append(one.Args, "--on-trainer-loss", c.OnTrainerLoss)
		}
		if c.Data == "" {
			one.Args = append(one.Args, "--data-roots", j.path("data"))
		}
		if c.Resume && c.Servers > 0 {
			one.Args = append(one.Args, "--resume", j.path(checkpointsDir)) // has an effect only if etcd lost the job
		}
		for _, path := range j.evaluated() {
			one.Args = append(one.Args, "--evaluation-data", path)
		}
		if len(j.evaluated()) > 0 {
			one.Args = append(one.Args, c.Evaluation...)
		}
		if c.Strategy != nil {
			one.Args = append(one.Args, "--strategy", StrategyPath(c.Dir))
		}
		one.Completed = []int{ExitSetAside} // the result has the tasks
		j.masters = append(j.masters, one)
	}
	for i := range c.Servers {
		name := fmt.Sprintf("pserver-%d", i)
		server := child(name, "pserver", "--listen", "127.0.0.1:0", "--ps-ttl", "5s",
			"--checkpoint-dir", j.path(checkpointsDir))
		server.Grace = serverStopTimeout
		j.servers = append(j.servers, server)
	}
	for i := range c.Trainers {
		name := fmt.Sprintf("trainer-%d", i)
		if len(c.Command) > 0 {
			own := child(name)
			own.Temporary = nil
			own.Path, own.Args, own.Env, own.Dir = c.Command[0], c.Command[1:], slices.Concat(env, j.ownEnvironment(name)), j.folder
			j.trainers = append(j.trainers, own)
			continue
		}
		args := []string{"trainer", "--id", name, "--model", c.Model, "--model-seed", strconv.FormatUint(c.Seed, 10), "--save-model", j.modelPath()}
		if c.Population {
			args = append(args, "--own-model", "--control-listen", "127.0.0.1:0")
		} else {
			args = append(args, "--checkpoint-dir", j.path(checkpointsDir))
		}
		for _, path := range j.data.Train.Paths {
			args = append(args, "--data", path)
		}
		if c.Data != "" {
			args = append(args, "--classes", strconv.Itoa(j.data.Classes))
		}
		args = append(args, c.Optimizer.Flags()...)
		if c.Protocol != "" {
			args = append(args, "--protocol", string(c.Protocol))
		}
		if c.WireDType != "" {
			args = append(args, "--wire-dtype", c.WireDType)
		}
		args = append(args, "--push-every", strconv.Itoa(c.Exchange.PushEvery), "--pull-every", strconv.Itoa(c.Exchange.PullEvery),
			"--staleness", strconv.FormatUint(c.Exchange.Staleness.Limit, 10), "--staleness-policy", c.Exchange.Staleness.Name())
		if c.Journal {
			args = append(args, "--journal", j.path("journal.jsonl"))
		}
		j.trainers = append(j.trainers, child(name, args...))
	}
}
