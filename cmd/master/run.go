package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"

	"trainmaster/cmd/internal/admin"
	"trainmaster/cmd/internal/cli"
	"trainmaster/cmd/internal/view"
	"trainmaster/dataset/convert"
	"trainmaster/etcdstore"
	"trainmaster/local"
	"trainmaster/master"
	"trainmaster/trainer"
	"trainmaster/trainer/model"
)

// runFlags are the flags of `master run`.
type runFlags struct {
	config         local.Config
	dir            string // for the directories of runs
	resume         string
	dataset        *string
	data           string // of the user, or of MNIST
	kind           *string
	dtype          *string
	protocol       *string
	update         *string
	lostTask       *string
	output         *string
	evaluation     evaluationFlags
	strategy       string // path of the strategy file; "": none
	checkOptimizer func() error
	checkExchange  func(synchronous bool) error
}

// runCommand is a whole job on this machine.
func runCommand() *cobra.Command {
	var r runFlags
	cmd := &cobra.Command{
		Use:   "run [flags] [-- COMMAND [ARGUMENT]...]",
		Short: "Run a whole job on this machine",
		Long: `Run starts everything that a job needs as processes on this machine (etcd, a master, parameter servers, trainers),
trains a model on handwritten digits or on flights, and measures it on records that were held out. A process that dies is started
again: kill one with -9 and look.

With --data PREFIX the model is trained on a dataset of your own, PREFIX-00000-of-00004 and so on as 'master recordio convert'
writes them. The numbers of features and classes come from the dataset. The model is measured on PREFIX-test-00000-of-00001
and so on, which convert writes with --held-out. With --data GLOB the model is trained on the files that match, except
for held-out shards that match together with the shards to train on: these measure the model.

With a command after --, each trainer is a process of that command instead of the built-in trainer. Its environment has
TRAINMASTER_ADDR (host:port of the master, the same while masters change), TRAINMASTER_ENDPOINTS (URL of etcd), TRAINMASTER_JOB,
TRAINMASTER_TRAINER (its name), TRAINMASTER_PROTOCOL and TRAINMASTER_BIN (the path of this program). A command must exit with code 0 at the end of the job. A command that is killed is started again, and a
command that fails --max-relaunch times at most. If it fails within 30 s of its first start, or with code 64, the run ends. The job
has parameter servers only if --ps is given.

Each run has a new directory under --dir, with the data, the logs, the checkpoints and the model.

Exit code 4: the job ended, but tasks are set aside: some of the data was not trained in all passes.`,
		Example: `  # softmax regression on the 1,797 digits that come with the program
  master run
  # the two-layer network, in synchronous steps
  master run --model mlp --update-mode sync
  # with another optimizer, whose rate falls along a cosine after a warm-up
  master run --model mlp --optimizer adam --learning-rate 0.002 \
    --schedule cosine --warmup-steps 100 --schedule-steps 5000
  # a factorization machine, whose parameters are rows of embedding tables: which flights were late?
  master run --dataset flights
  # MNIST, from its four idx files
  master run --dataset mnist --data data/mnist --model mlp
  # a model on your own data
  master run --data data/digits --model mlp
  # until the accuracy on the held-out records is 0.97, with the figures of each round in a file
  master run --best-metric accuracy:max --target 0.97 --metrics-out figures.txt
  # with a schedule of the learning rate, and rules that end the job
  master run --update-mode sync --strategy examples/strategy.yaml
  # four trainers with models of their own: the worst continue with the model of the best
  master run --passes 150 --trainers 4 --strategy examples/population.yaml
  # your own trainers on your own data
  master run --data data/digits -- ./trainer
  # a synchronous run rolls back when a server is lost; continue it when all processes were killed
  master run --update-mode sync
  master run --resume trainmaster-run/001
  # with a standby; for a takeover: master drill kill-leader
  master run --masters 2 --drillable --passes 500`,
	}
	r.add(cmd)
	cmd.Args = onlyAfterDash
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := r.begin(cmd, args); err != nil {
			return err
		}
		metrics, closeMetrics, err := r.evaluation.openMetrics(cmd)
		if err != nil {
			return err
		}
		return cmp.Or(runLocal(cmd.Context(), r.config, *r.output, cmd.OutOrStdout(), cmd.ErrOrStderr(), metrics), closeMetrics())
	}
	return cmd
}

// add gives cmd the flags.
func (r *runFlags) add(cmd *cobra.Command) {
	c := &r.config
	flags := cmd.Flags()
	flags.StringVar(&r.dir, "dir", admin.RunsDir, "`directory` for the directories of runs")
	flags.StringVar(&r.resume, "resume", "", "`directory` of a run to continue, with its settings")
	r.dataset = cli.AddChoice(cmd, "dataset", "", "what to train on", model.Digits, model.MNIST, model.Flights)
	flags.StringVar(&r.data, "data", "", "`prefix` of a converted dataset, or a glob of RecordIO or TFRecord files; with --dataset mnist, the directory of its idx files; with own trainers also a range://")
	completePrefixes(cmd, "data")
	r.kind = cli.AddChoice(cmd, "model", "", "what to train (auto: fm for categories, else softmax)", append([]string{autoModel}, model.Kinds()...)...)
	r.checkOptimizer = addOptimizer(cmd, &c.Optimizer)
	r.dtype = addWireDType(cmd)
	r.protocol = addProtocol(cmd)
	r.checkExchange = addExchange(cmd, &c.Exchange)
	r.update = cli.AddChoice(cmd, "update-mode", "", "how gradients are applied: on arrival (async) or in steps of all trainers (sync)", "async", "sync")
	flags.IntVar(&c.Backups, "backup-workers", 0, "trainers that a synchronous step does not wait for")
	flags.BoolVar(&c.Deterministic, "deterministic", false, "two runs agree bit by bit, with synchronous steps")
	flags.IntVar(&c.Passes, "passes", 0, "walks over the dataset (0: chosen by the data; 1 for own trainers)")
	flags.IntVar(&c.Masters, "masters", 1, "number of masters, at most 16: one leads, the others are standbys")
	flags.IntVar(&c.Servers, "ps", 2, "number of parameter servers, at most 128 (default for own trainers, and with a population: 0)")
	flags.IntVar(&c.Trainers, "trainers", usualTrainers, "number of trainers, at most 1000")
	flags.IntVar(&c.MaxRelaunch, "max-relaunch", 3, "maximum charged restarts of a trainer or a parameter server; ends by SIGKILL do not count")
	flags.Uint64Var(&c.Seed, "seed", 0, "of the order of passes and the initial parameters")
	flags.DurationVar(&c.CheckpointEvery, "checkpoint-every", 2*time.Second, "time between checkpoints of the parameter servers")
	r.evaluation.addRules(cmd)
	addStrategy(cmd, &r.strategy)
	r.lostTask = addTrainerLoss(cmd)
	flags.BoolVar(&c.Journal, "journal", false, "have the trainers write one line of JSON per trained task to journal.jsonl")
	flags.BoolVar(&c.Drillable, "drillable", false, "put a proxy between each master and etcd, for the drills partition and slow-store")
	r.output = cli.AddOutput(cmd)
}

// begin completes the configuration and makes the directory of the run.
func (r *runFlags) begin(cmd *cobra.Command, args []string) (err error) {
	c := &r.config
	if c.Command, err = ownCommand(args); err != nil {
		return err
	}
	if r.resume != "" {
		if err := r.continueRun(cmd, args); err != nil {
			return err
		}
	}
	if len(c.Command) > 0 {
		if err := takeOwn(cmd, c); err != nil {
			return err
		}
	}
	if err := cmp.Or(r.takeStrategy(cmd), r.checkNumbers(cmd), r.evaluation.check(cmd), r.checkSteps(cmd), r.checkOptimizer(), r.checkExchange(*r.update == "sync")); err != nil {
		return err
	}
	if err := r.complete(cmd); err != nil {
		return err
	}
	if err := r.checkEvaluated(cmd); err != nil {
		return err
	}
	if c.Binary, err = os.Executable(); err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	if !c.Resume {
		if c.Dir, err = local.NewDir(r.dir); err != nil {
			return fmt.Errorf("--dir %w", err)
		}
	}
	c.Log = logrus.NewEntry(cli.NewLogger(cmd))
	return nil
}

// checkNumbers returns an error for the first flag that no run on one machine can have.
func (r *runFlags) checkNumbers(cmd *cobra.Command) error {
	c, leastServers := &r.config, 1
	if len(c.Command) > 0 || c.Population {
		leastServers = 0
	}
	switch {
	case *r.dataset == model.MNIST && r.data == "":
		return cli.UsageErrorf("--dataset mnist: expected --data with the directory of its idx files; `make data` fetches them into data/mnist")
	case *r.dataset != model.MNIST && r.data != "" && cmd.Flags().Changed("dataset"):
		return cli.UsageErrorf("--data %q: expected it with --dataset mnist, or without --dataset: the %s are in the program", r.data, *r.dataset)
	case c.Masters < 1 || c.Servers < leastServers || c.Trainers < 1:
		return cli.UsageErrorf("--masters, --ps, --trainers: expected at least 1 of each, found %d, %d and %d", c.Masters, c.Servers, c.Trainers)
	case c.Masters > mostRunMasters:
		return cli.SettingErrorf(cmd, "masters", "expected 1 to %d: each is a process of this machine", mostRunMasters)
	case c.Servers > mostRunServers:
		return cli.SettingErrorf(cmd, "ps", "expected %d to %d: each is a process of this machine", leastServers, mostRunServers)
	case c.Trainers > mostRunTrainers:
		return cli.SettingErrorf(cmd, "trainers", "expected 1 to %d: each is a process of this machine", mostRunTrainers)
	case c.MaxRelaunch < 0:
		return cli.SettingErrorf(cmd, "max-relaunch", "expected 0 or more")
	case c.Passes < 0:
		return cli.SettingErrorf(cmd, "passes", "expected 0 (chosen by the data) or more")
	case c.CheckpointEvery <= 0:
		return cli.SettingErrorf(cmd, "checkpoint-every", "expected more than 0")
	}
	return nil
}

// checkSteps refuses an interval of steps in a run that does not count them.
func (r *runFlags) checkSteps(cmd *cobra.Command) error {
	if r.evaluation.config.Every.Steps > 0 && *r.update != "sync" {
		return cli.SettingErrorf(cmd, "evaluate-every", "expected no steps without --update-mode sync: the master counts them in synchronous mode only")
	}
	return nil
}

// complete copies the flags into the configuration and lets the packages that use it check it.
func (r *runFlags) complete(cmd *cobra.Command) error {
	c := &r.config
	if c.Dataset, c.MNIST = *r.dataset, r.data; *r.dataset != model.MNIST && r.data != "" {
		c.Data, c.Dataset, c.MNIST = r.data, "", ""
	}
	if c.Evaluation = r.evaluation.args(); c.Population {
		c.Evaluation = nil // no model is the model of the job
	}
	c.Model, c.Sync, c.WireDType = *r.kind, *r.update == "sync", *r.dtype
	c.Protocol = trainer.Protocol(*r.protocol)
	if c.Model == autoModel {
		c.Model = "" // chosen by the data
	}
	if c.Settings = runSettings(cmd); !c.Deterministic || cmd.Flags().Changed("on-trainer-loss") {
		c.OnTrainerLoss = *r.lostTask
	}
	check := master.Config{Sync: c.Sync, Backups: c.Backups, Deterministic: c.Deterministic}
	check.Queue.ExplicitCommit, check.Queue.Cuts = c.Sync, c.Sync // as in daemonSettings.validate
	if err := check.Validate(); err != nil {
		return cli.UsageErrorf("--%v", err)
	}
	if err := c.Validate(); err != nil {
		return cli.UsageErrorf("%w", optimizerError(cmd, err))
	}
	return checkTables(c.Model, *r.dtype) // of the model that Validate chose
}

// checkEvaluated returns an error for settings that need evaluation rounds if the data has no held-out records. Own trainers have none of
// these settings, and the data of the program has such records.
func (r *runFlags) checkEvaluated(cmd *cobra.Command) error {
	c := &r.config
	if c.Data == "" || len(c.Command) > 0 || c.Resume {
		return nil
	}
	_, heldOut, err := convert.Resolve(cmd.Context(), c.Data)
	if err != nil || len(heldOut) > 0 {
		return err
	}
	const expected = "held-out records in --data, which recordio convert --held-out 0.2 writes"
	if err := r.evaluation.checkUsed(cmd, expected); err != nil || r.strategy == "" {
		return err
	}
	_, parsed, err := loadStrategy(r.strategy)
	if err != nil {
		return err
	}
	return strategyUse{data: expected}.checkRounds(cmd, parsed)
}

// Maximum numbers of processes of a run on one machine. A job on several machines does not have these limits.
const (
	mostRunMasters  = 16
	mostRunServers  = 128
	mostRunTrainers = 1000
)

// autoModel is the model that goes with the dataset.
const autoModel = "auto"

// runLocal runs the job with progress on errOut and the result on out.
// metrics receives the figures of evaluation rounds; nil: none are written.
func runLocal(ctx context.Context, c local.Config, format string, out, errOut, metrics io.Writer) error {
	if len(c.Command) == 0 {
		servers := cli.Counted(c.Servers, "parameter server")
		if c.Population {
			servers = "a model of each"
		}
		fmt.Fprintf(errOut, "Training %s on %s with %s and %s, in %s\n", c.Model, c.DataName(), cli.Counted(c.Trainers, "trainer"), servers, c.Dir)
	} else {
		servers := ""
		if c.Servers > 0 {
			servers = " and " + cli.Counted(c.Servers, "parameter server")
		}
		fmt.Fprintf(errOut, "Running %s%s on %s, in %s: %s\n", cli.Counted(c.Trainers, "trainer"), servers, c.DataName(), c.Dir, strings.Join(c.Command, " "))
	}
	job, err := local.New(c)
	if err != nil {
		return cli.UsageErrorf("%v", err)
	}
	result, err := job.Run(ctx, func(ctx context.Context, endpoint string) {
		fmt.Fprintf(errOut, "etcd at %s; look in with: %s status --endpoints %s\n", endpoint, filepath.Base(c.Binary), endpoint)
		trainerLog := ""
		if len(c.Command) > 0 {
			trainerLog = filepath.Join(c.Dir, "logs", "trainer-0.log")
		}
		admin.WatchJob(ctx, etcdstore.Config{Endpoints: []string{endpoint}}, view.NewProgress(errOut, trainerLog, metrics))
	})
	if err != nil {
		return runError(ctx, c.Dir, err)
	}
	if err := cli.Render(out, format, result, func(w io.Writer) { view.RunTable(w, result) }); err != nil {
		return err
	}
	return admin.SetAsideError(result.SetAside.Tasks, filepath.Base(c.Binary)+" queues --literal --data-dir "+filepath.Join(c.Dir, "etcd"))
}
