package local

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"trainmaster/local/drill"
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
	child := func(name string, args ...string) *process {
		return &process{
			name: name, binary: c.Binary, args: append(args, "--endpoints", cmp.Or(j.proxied[name], j.endpoint)), logPath: j.path("logs", name+".log"), log: c.Log,
			restartPause: restartPause, stopTimeout: stopTimeout, register: j.register, storeFailed: &j.storeFailed,
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
			one.args = append(one.args, "--on-trainer-loss", c.OnTrainerLoss)
		}
		if c.Data == "" {
			one.args = append(one.args, "--data-roots", j.path("data"))
		}
		if c.Resume && c.Servers > 0 {
			one.args = append(one.args, "--resume", j.path(checkpointsDir)) // has an effect only if etcd lost the job
		}
		for _, path := range j.evaluated() {
			one.args = append(one.args, "--evaluation-data", path)
		}
		if len(j.evaluated()) > 0 {
			one.args = append(one.args, c.Evaluation...)
		}
		if c.Strategy != nil {
			one.args = append(one.args, "--strategy", StrategyPath(c.Dir))
		}
		one.endCodes = []int{ExitSetAside} // the result has the tasks
		if i == 0 {
			j.master = one
		} else {
			j.standbys = append(j.standbys, one)
		}
	}
	for i := range c.Servers {
		name := fmt.Sprintf("pserver-%d", i)
		server := child(name, "pserver", "--listen", "127.0.0.1:0", "--ps-ttl", "5s",
			"--checkpoint-dir", j.path(checkpointsDir))
		server.stopTimeout = serverStopTimeout
		j.servers = append(j.servers, server)
	}
	for i := range c.Trainers {
		name := fmt.Sprintf("trainer-%d", i)
		if len(c.Command) > 0 {
			own := child(name)
			own.binary, own.args, own.env, own.dir = c.Command[0], c.Command[1:], j.ownEnvironment(name), j.folder
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
