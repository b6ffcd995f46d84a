package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"

	"trainmaster/etcdstore"
	"trainmaster/trainer"
	"trainmaster/trainer/model"
	"trainmaster/trainer/reference"
)

// trainerCommand is a trainer process with one of the reference models.
func trainerCommand() *cobra.Command {
	var (
		w       reference.Worker
		addr    string
		servers []string
	)
	cmd := &cobra.Command{
		Use:   "trainer",
		Short: "Train a reference model on the tasks of a job",
		Long: `Trainer joins a job, reports its dataset, and trains softmax regression or a two-layer network on the tasks that the
master gives it, with the parameters on the job's parameter servers. It finds the master and the servers through etcd,
or by --addr and --servers. It waits for what is not there yet and says so; a master or a server that dies and comes
back costs it a pause. One trainer of the job is elected to save the model at the end.`,
		Example: `  # join the job whose state is in this etcd
  master trainer --endpoints 127.0.0.1:2379 --data 'data/digits-0*' --model mlp --save-model digits.safetensors`,
	}
	etcd := addEtcdFlags(cmd)
	flags := cmd.Flags()
	flags.StringVar(&addr, "addr", "", "`host:port` of the master (default: found through etcd)")
	flags.StringSliceVar(&servers, "servers", nil, "`host:port` of every parameter server (default: found through etcd)")
	flags.StringVar(&w.Trainer.ID, "id", defaultID(), "`name` of this trainer; a second one with the same name takes its place")
	flags.StringSliceVar(&w.Data, "data", nil, "`paths` and globs of the RecordIO files to train on")
	kind := addChoice(cmd, "model", "", "what to train", model.Kinds()...)
	flags.IntVar(&w.Classes, "classes", 10, "labels are 0 to one less")
	flags.IntVar(&w.Recipe.Hidden, "hidden", 0, "units of the hidden layer (0: chosen by the data)")
	flags.IntVar(&w.Recipe.BatchSize, "batch-size", 0, "records in a mini-batch (0: chosen by the data)")
	flags.Float64Var(&w.Recipe.LearningRate, "learning-rate", 0, "of the mean gradient (0: chosen by the data)")
	flags.Float64Var(&w.Recipe.Momentum, "momentum", 0, "with --learning-rate: of plain momentum")
	flags.Uint64Var(&w.Seed, "model-seed", 1, "of the initial parameters")
	flags.StringVar(&w.SavePath, "save-model", "", "safetensors `file` that the elected trainer writes at the end")
	flags.StringVar(&w.LedgerPath, "ledger", "", "`file` to note each trained task in, as a line of JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if len(w.Data) == 0 {
			return usageErrorf("--data: expected the RecordIO files to train on, found nothing")
		}
		w.Kind = *kind
		w.Log = logrus.WithField("trainer", w.Trainer.ID)
		w.Trainer.Log = w.Log
		if len(etcd.Endpoints) == 0 && (addr == "" || len(servers) == 0) {
			return usageErrorf("expected --endpoints of etcd, or --addr of the master and --servers, found neither")
		}
		return train(cmd.Context(), &w, etcd, addr, servers)
	}
	return cmd
}

func defaultID() string {
	host, err := os.Hostname()
	if err != nil {
		host = "trainer"
	}
	return fmt.Sprintf("%s-%d", host, os.Getpid())
}

// train finds master and parameter servers, and trains.
func train(ctx context.Context, w *reference.Worker, etcd *etcdstore.Config, addr string, servers []string) error {
	w.Trainer.Locate = trainer.At(addr)
	w.Servers = func(context.Context) ([]string, error) { return servers, nil }
	if len(etcd.Endpoints) > 0 {
		store, err := etcdstore.OpenRetry(ctx, *etcd, func(err error, next time.Duration) {
			w.Log.WithError(err).WithField("next", next.Round(time.Millisecond).String()).Warn("etcd does not answer, trying again")
		})
		if err != nil {
			return err
		}
		defer store.Close()
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
				for a := range store.WatchMasterAddr(watching) {
					follow.Set(a.Addr, a.Term)
				}
			}()
			w.Trainer.Locate = follow
		}
		if len(servers) == 0 {
			w.Servers = func(ctx context.Context) ([]string, error) {
				return store.WaitPS(ctx, func(missing []int) {
					w.Log.WithField("missing", missing).Info("waiting for parameter servers")
				})
			}
		}
	}
	return w.Run(ctx)
}
