package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"trainmaster/cmd/internal/admin"
	"trainmaster/cmd/internal/cli"
	"trainmaster/dataset"
	"trainmaster/dataset/convert"
	"trainmaster/etcdstore"
	"trainmaster/local"
	"trainmaster/trainer"
	"trainmaster/trainer/model"
	"trainmaster/trainer/params"
	"trainmaster/trainer/parts"
	"trainmaster/trainer/reference"
)

// trainerCommand is a trainer process with one of the reference models.
func trainerCommand() *cobra.Command {
	var (
		w       reference.Worker
		addr    string
		servers []string
		stored  string

		predictOut, predictModel string

		ring     reference.Ring
		strategy = parameterServers
	)
	cmd := &cobra.Command{
		Use:   "trainer",
		Short: "Train a reference model on the tasks of a job",
		Long: `Trainer joins a job, reports its dataset, and trains a model on the tasks that the master gives it (softmax regression or a
two-layer network on images, logistic regression or a factorization machine on categories), with the parameters on the job's parameter servers. It finds the master and the servers through etcd,
or by --addr and --servers. It waits for a master and servers that are not running yet; after a crash of a
master or server it continues when that process runs again. One trainer of the job is elected to save the model at the end.

With --distribution-strategy allreduce, there are no parameter servers: the trainers of the job form a ring, add their gradients in each step, and
have the same model (docs/allreduce.md). The master must have --ring.`,
		Example: `  # join the job whose state is in this etcd
  master trainer --endpoints 127.0.0.1:2379 --data 'data/digits-0*' --model mlp \
    --save-model digits.safetensors
  # by all-reduce, without parameter servers; the master has --ring 2:4
  master trainer --endpoints 10.0.0.5:2379 --data 'data/digits-0*' \
    --distribution-strategy allreduce --ring-listen :9200
  # with a model of its own, for a population
  master trainer --endpoints 127.0.0.1:2379 --data 'data/digits-0*' --own-model`,
	}
	etcd := cli.AddEtcdFlags(cmd)
	open := cli.AddStoreTimeout(cmd)
	leaderTimeout := cli.AddLeaderTimeout(cmd)
	flags := cmd.Flags()
	flags.StringVar(&addr, "addr", "", "`host:port` of the master (default: found through etcd)")
	flags.StringSliceVar(&servers, "servers", nil, "`host:port` of every parameter server (default: found through etcd)")
	flags.StringVar(&w.Trainer.ID, "id", defaultID(), "`name` of this trainer; a second one with the same name takes its place")
	flags.StringSliceVar(&w.Data, "data", nil, "`prefix` of a converted dataset, or paths, URLs (s3://bucket/key, azblob://, gs://) and globs of RecordIO or TFRecord files to train on (default: the datasets that the master registers, with --dataset)")
	openStores := addDataCache(cmd)
	kind := cli.AddChoice(cmd, "model", "", "what to train", model.Kinds()...)
	flags.IntVar(&w.Classes, "classes", 0, "`number` of classes, above the greatest label (0: as the dataset states, else 10; 2 for models of categories)")
	flags.IntVar(&w.Recipe.Hidden, "hidden", 0, "units of the hidden layer (0: chosen by the data)")
	flags.IntVar(&w.Recipe.Rank, "rank", 0, "factors of a category in a factorization machine (0: chosen by the data)")
	flags.IntVar(&w.Recipe.BatchSize, "batch-size", 0, "records in a mini-batch, at most 1048576 (0: chosen by the data)")
	checkOptimizer := addOptimizer(cmd, &w.Recipe.Optimizer)
	dtype := addWireDType(cmd)
	protocol := addProtocol(cmd)
	checkExchange := addExchange(cmd, &w.Recipe.Exchange)
	flags.Uint64Var(&w.Trainer.ShuffleRecords, "shuffle-records", 0, "shuffle the records within each task, with a `seed` that all trainers of the job must have (--shuffle-records: 1; 0: in the order of the files)")
	flags.Lookup("shuffle-records").NoOptDefVal = "1"
	flags.Uint64Var(&w.Seed, "model-seed", 1, "of the initial parameters")
	flags.StringVar(&w.SavePath, "save-model", "", "safetensors `file` that the elected trainer writes at the end")
	flags.StringVar(&stored, "checkpoint-dir", "", "`directory`, or s3://bucket/prefix, of the checkpoints of the parameter servers, for evaluation rounds (default: the newest parameters are evaluated)")
	flags.StringVar(&predictOut, "predict-out", "", "`directory`, or s3://bucket/prefix, for predictions: the trainer accepts tasks of --prediction-data of the master (default: it accepts none)")
	flags.StringVar(&predictModel, "predict-model", "", "saved `file` of a model that predicts; the trainer then trains nothing and needs no parameter servers (default: the newest parameters)")
	flags.StringVar(&w.JournalPath, "journal", "", "`file` for one line of JSON per trained task")
	flags.StringVar(&w.Trainer.Control, "control-listen", "", "`host:port` for the gRPC service TrainerControl; a port alone, as :9000, is open on all addresses (default: none)")
	flags.BoolVar(&w.Own, "own-model", false, "train a model of this trainer alone, without parameter servers, for a job with a population (--strategy of the master)")
	flags.Var(&strategy, "distribution-strategy", "how the trainers share a model: parameter-server, allreduce (a ring of the trainers, without parameter servers), or local (as --own-model)")
	cli.CompleteWords(cmd, "distribution-strategy", []string{string(parameterServers), string(allReduce), string(eachAlone)})
	flags.StringVar(&ring.Listen, "ring-listen", "127.0.0.1:0", "`host:port` for the connections of the other trainers, with --distribution-strategy allreduce; a port alone, as :9200, is open on all addresses")
	flags.StringVar(&ring.Host, "ring-host", "", "`address` at which the other trainers reach this one (default: POD_IP, else the host of --ring-listen, else the address of the connection to the master)")
	flags.DurationVar(&w.RecordDelay, "record-delay", 0, "`time` to wait before each record, so that a small dataset lasts (for drills)")
	cmd.Args = func(_ *cobra.Command, args []string) error {
		if len(args) > 0 {
			return cli.UsageErrorf("found arguments after the flags: %s; a glob is quoted, so that the shell leaves it alone: --data 'data/digits-0*'", strings.Join(args, " "))
		}
		return nil
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := cmp.Or(validateWorker(cmd, &w, addr, servers), checkOptimizer(), checkExchange(false)); err != nil {
			return err
		}
		switch {
		case predictModel != "" && predictOut == "":
			return cli.UsageErrorf("--predict-model: expected --predict-out with the directory of the predictions")
		case predictModel != "" && len(w.Data) > 0:
			return cli.UsageErrorf("--predict-model: expected no --data: the trainer trains nothing")
		}
		if err := checkStrategy(cmd, strategy, &w, &ring, predictOut); err != nil {
			return err
		}
		limit, err := leaderTimeout(len(etcd.Endpoints) > 0)
		if err != nil {
			return err
		}
		alone := w.Own || w.Ring != nil
		if alone {
			if err := checkOwnModel(cmd, *kind, servers, stored, predictModel); err != nil {
				return err
			}
		}
		if predictModel == "" && !alone && len(etcd.Endpoints) == 0 && (addr == "" || len(servers) == 0) || len(etcd.Endpoints) == 0 && addr == "" {
			return cli.UsageErrorf("expected --endpoints of etcd, or both --addr of the master and --servers (or --predict-model), found %s", given(addr, servers))
		}
		if err := checkTables(*kind, *dtype); err != nil {
			return err
		}
		if w.Data, err = withShards(w.Data); err != nil {
			return cli.UsageErrorf("--data: %w", err)
		}
		if w.Trainer.Stores, err = openStores(); err != nil {
			return err
		}
		w.Kind, w.WireDType = *kind, params.WireDType(*dtype)
		w.Log = cli.NewLogger(cmd).WithField("trainer", w.Trainer.ID)
		w.Trainer.Log, w.Trainer.Protocol = w.Log, trainer.Protocol(*protocol)
		if stored != "" {
			w.Stored = storedIn(stored)
		}
		if predictOut != "" {
			to, err := parts.Open(predictOut)
			if err != nil {
				return cli.UsageErrorf("--predict-out: %w", err)
			}
			defer to.Close()
			w.Predict.Parts, w.Predict.Claim = to, to.Claim
		}
		if predictModel != "" {
			saved, err := reference.ReadSaved(predictModel)
			if err != nil {
				return cli.UsageErrorf("--predict-model: %w", err)
			}
			w.Predict.Model = &saved
		}
		//guard:trainer-names-its-job
		if len(etcd.Endpoints) > 0 || cmd.Flag("job").Changed {
			w.Trainer.Job = etcd.Job // a master of another job at --addr refuses the trainer
		}
		if len(etcd.Endpoints) == 0 {
			w.Trainer.Locate = trainer.At(addr)
			w.Servers = func(context.Context) ([]string, error) { return servers, nil }
			return runWorker(cmd.Context(), &w)
		}
		store, err := open(cmd.Context(), *etcd, w.Log)
		//guard:trainer-stopped-at-its-start
		if err != nil && cmd.Context().Err() != nil {
			w.Log.Info("stopped during the start")
			return cli.ErrStopped
		}
		if err != nil {
			return err
		}
		defer store.Close()
		return admin.WhileLed(cmd.Context(), store, limit, w.Log, func(ctx context.Context) error { return trainBy(ctx, store, &w, addr, servers) })
	}
	return cmd
}

// checkStrategy sets how the trainer shares its model.
func checkStrategy(cmd *cobra.Command, strategy distribution, w *reference.Worker, ring *reference.Ring, predictOut string) error {
	switch {
	case w.Own && cmd.Flags().Changed("distribution-strategy") && strategy != eachAlone:
		return cli.SettingErrorf(cmd, "distribution-strategy", "expected local with --own-model")
	case strategy == eachAlone:
		w.Own = true
	}
	if strategy != allReduce {
		return nil // pods have the variables of the other flags anyway
	}
	switch {
	case !isListenAddress(ring.Listen):
		return cli.SettingErrorf(cmd, "ring-listen", "expected host:port or :port")
	case predictOut != "":
		return cli.SettingErrorf(cmd, "predict-out", "expected none with --distribution-strategy allreduce: predict with --predict-model after the training")
	case w.Recipe.Exchange != reference.Exchange{}:
		return cli.UsageErrorf("--push-every, --pull-every and --staleness: expected none with --distribution-strategy allreduce: each step has one mini-batch of each trainer")
	}
	ring.Host = cmp.Or(ring.Host, os.Getenv("POD_IP"))
	if ring.Host != "" && isLoopback(ring.Listen) && !isLoopback(ring.Host) {
		return cli.SettingErrorf(cmd, "ring-listen", "expected an address that the other trainers reach at %s, such as :9200", ring.Host)
	}
	if host, _, err := net.SplitHostPort(ring.Listen); err == nil && ring.Host == "" {
		if ip := net.ParseIP(host); ip == nil || !ip.IsUnspecified() {
			ring.Host = host // "" with a port alone
		}
	}
	w.Ring = ring
	return nil
}

// checkOwnModel returns an error for a flag that does not go with a model of the trainers, --own-model or --distribution-strategy allreduce.
func checkOwnModel(cmd *cobra.Command, kind string, servers []string, stored, predictModel string) error {
	switch {
	case model.OfCategories(kind):
		return cli.SettingErrorf(cmd, "model", "expected softmax or mlp with --own-model or --distribution-strategy allreduce: the rows of tables are on parameter servers")
	case len(servers) > 0:
		return cli.UsageErrorf("--servers: expected none with --own-model or --distribution-strategy allreduce: the trainer uses no parameter servers")
	case stored != "":
		return cli.SettingErrorf(cmd, "checkpoint-dir", "expected none without parameter servers: they write the checkpoints")
	case predictModel != "":
		return cli.SettingErrorf(cmd, "predict-model", "expected none with --own-model or --distribution-strategy allreduce: a saved model is not trained")
	}
	return nil
}

// withShards replaces each prefix by the shards to train on. The master expands other names.
func withShards(names []string) (all []string, err error) {
	for _, name := range names {
		shards, _, err := convert.Shards(name)
		if err != nil {
			return nil, err
		}
		if len(shards) == 0 {
			shards = []string{name}
		}
		all = append(all, shards...)
	}
	return all, nil
}

// validateWorker names the first flag with a value that makes no sense.
func validateWorker(cmd *cobra.Command, w *reference.Worker, addr string, servers []string) error {
	r := &w.Recipe
	switch {
	case !trainerName.MatchString(w.Trainer.ID):
		return cli.SettingErrorf(cmd, "id", "expected 1 to 128 letters, digits, '.', '_' and '-'")
	case slices.ContainsFunc(w.Data, dataset.IsRange):
		return cli.SettingErrorf(cmd, "data", "expected files: no built-in model resolves the record numbers of a range")
	case w.Classes != 0 && w.Classes < 2:
		return cli.SettingErrorf(cmd, "classes", "expected 0 (chosen by the model) or at least 2")
	case r.Hidden < 0:
		return cli.SettingErrorf(cmd, "hidden", "expected 0 (chosen by the data) or more")
	case r.Rank < 0:
		return cli.SettingErrorf(cmd, "rank", "expected 0 (chosen by the data) or more")
	case r.BatchSize < 0 || r.BatchSize > mostBatch:
		return cli.SettingErrorf(cmd, "batch-size", "expected 0 (chosen by the data) to %d", mostBatch)
	case w.RecordDelay < 0:
		return cli.SettingErrorf(cmd, "record-delay", "expected 0 or more")
	case w.Trainer.Control != "" && !isListenAddress(w.Trainer.Control):
		return cli.SettingErrorf(cmd, "control-listen", "expected host:port or :port")
	case addr != "" && !cli.IsHostPort(addr):
		return cli.SettingErrorf(cmd, "addr", "expected host:port")
	case slices.ContainsFunc(servers, func(s string) bool { return !cli.IsHostPort(s) }):
		return cli.SettingErrorf(cmd, "servers", "expected host:port of each")
	}
	return nil
}

// isListenAddress reports whether a server can listen at the text: a port, after a host or nothing.
func isListenAddress(text string) bool {
	return cli.IsHostPort(text) || strings.HasPrefix(text, ":") && cli.IsHostPort("0.0.0.0"+text)
}

// trainerName is what the master takes for the name of a trainer.
var trainerName = regexp.MustCompile(`^[A-Za-z0-9._-]{1,128}$`)

const mostBatch = 1 << 20

// given names the one of --addr and --servers that is set, for an error.
func given(addr string, servers []string) string {
	switch {
	case addr != "":
		return "--addr alone"
	case len(servers) > 0:
		return "--servers alone"
	}
	return "none of them"
}

func defaultID() string {
	if name := os.Getenv(local.TrainerVariable); trainerName.MatchString(name) {
		return name // as the command of a `master run`
	}
	host, err := os.Hostname()
	if err != nil {
		host = "trainer"
	}
	return fmt.Sprintf("%s-%d", host, os.Getpid())
}

// trainBy trains with the master and the parameter servers that the store names, where addr and servers do not.
func trainBy(ctx context.Context, store *etcdstore.Store, w *reference.Worker, addr string, servers []string) error {
	w.Trainer.Locate = trainer.At(addr)
	if addr == "" {
		watching, stop := context.WithCancel(ctx)
		follow := trainer.NewFollow()
		done := make(chan struct{})
		defer func() {
			stop()
			<-done
		}()
		go func() {
			defer close(done)
			admin.FollowLeader(watching, store, follow, w.Log)
		}()
		w.Trainer.Locate = follow
	}
	if w.Own || w.Ring != nil {
		return runWorker(ctx, w)
	}
	if len(servers) > 0 {
		w.Servers = func(context.Context) ([]string, error) { return servers, nil }
		return runWorker(ctx, w)
	}
	following, unfollow := context.WithCancel(ctx)
	defer unfollow()
	roster := store.FollowServers(following)
	w.During = roster.During
	w.Servers = addrsOf(roster, w.Log)
	return runWorker(ctx, w)
}

// runWorker runs a trainer. If no master is left to elect the saver of the model, the exit code is 3: another start may find a master.
func runWorker(ctx context.Context, w *reference.Worker) error {
	return orStopped(ctx, saverCode(w.Run(ctx)))
}

func saverCode(err error) error {
	if errors.Is(err, reference.ErrNoSaver) {
		return cli.ExitWith(cli.ExitStore, err)
	}
	return err
}
