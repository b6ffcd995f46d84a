package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"

	"trainmaster/cmd/internal/admin"
	"trainmaster/cmd/internal/cli"
	"trainmaster/cmd/internal/view"
	"trainmaster/dataset"
	"trainmaster/master"
	"trainmaster/master/evaluation"
	"trainmaster/master/pscontrol"
	"trainmaster/master/rounds"
	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/taskqueue"
)

// evaluationFlags are the flags of the evaluation of a job.
type evaluationFlags struct {
	data                []string
	every, best, target string
	metricsOut          string
	figures             map[string]string // that the strategy names
	config              evaluation.Config
}

// args returns the flags for a master, except the data and the output.
func (e *evaluationFlags) args() []string {
	return []string{
		"--evaluate-every", e.every, "--best-metric", e.best, "--target", e.target, "--keep-best", strconv.Itoa(e.config.KeepBest),
		"--patience", strconv.Itoa(e.config.Patience), "--diverged-factor", strconv.FormatFloat(e.config.Diverged, 'g', -1, 64),
	}
}

// openMetrics opens the file of --metrics-out, to append to it; nil: there is none.
func (e *evaluationFlags) openMetrics(cmd *cobra.Command) (w io.Writer, closeFile func() error, err error) {
	switch e.metricsOut {
	case "":
		return nil, func() error { return nil }, nil
	case "-":
		return cmd.OutOrStdout(), func() error { return nil }, nil
	}
	file, err := os.OpenFile(e.metricsOut, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, nil, cli.UsageErrorf("--metrics-out: %w", err)
	}
	return file, file.Close, nil
}

// add gives cmd the flags.
func (e *evaluationFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringSliceVar(&e.data, "evaluation-data", nil, "paths and `globs` of held-out RecordIO or TFRecord files (default: the job is not evaluated)")
	e.addRules(cmd)
}

// addRules gives cmd the flags for the times and the effects of rounds.
func (e *evaluationFlags) addRules(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&e.every, "evaluate-every", "1pass", "`intervals` of evaluation rounds, such as 500steps, 1pass, 10m or 500steps,10m; empty: by command and at the end")
	flags.StringVar(&e.best, "best-metric", "loss:min", "`figure` of the best models, with :min or :max, such as accuracy:max")
	flags.IntVar(&e.config.KeepBest, "keep-best", 1, "number of best models whose checkpoint sets stay, at most 100")
	flags.StringVar(&e.target, "target", "", "end the job when the figure of --best-metric reaches this `number`")
	flags.IntVar(&e.config.Patience, "patience", 0, "end the job after this number of `rounds` without a better figure (0: never)")
	flags.StringVar(&e.metricsOut, "metrics-out", "", "`file` that receives the figures of each round as lines of name=value (-: standard output)")
	flags.Float64Var(&e.config.Diverged, "diverged-factor", 0, "fail the job when the loss of a round exceeds this `factor` times the lowest loss (0: never)")
}

// check reads the flags.
func (e *evaluationFlags) check(cmd *cobra.Command) (err error) {
	c := &e.config
	if c.Every, err = evaluation.ParseEvery(e.every); err != nil {
		return cli.SettingErrorf(cmd, "evaluate-every", "expected intervals such as 500steps, 1pass or 10m, each unit once, separated by commas")
	}
	if c.Best, err = evaluation.ParseGoal(e.best); err != nil {
		return cli.SettingErrorf(cmd, "best-metric", "expected a figure with :min or :max, such as accuracy:max")
	}
	if e.target != "" {
		v, err := strconv.ParseFloat(e.target, 64)
		if err != nil || math.IsNaN(v) || math.IsInf(v, 0) {
			return cli.SettingErrorf(cmd, "target", "expected a finite number")
		}
		c.Target = &v
	}
	switch {
	case c.KeepBest < 1 || c.KeepBest > evaluation.MaxKept:
		return cli.SettingErrorf(cmd, "keep-best", "expected 1 to %d", evaluation.MaxKept)
	case c.Patience < 0:
		return cli.SettingErrorf(cmd, "patience", "expected 0 (never) or more")
	case c.Diverged != 0 && !(c.Diverged > 1 && c.Diverged <= math.MaxFloat64):
		return cli.SettingErrorf(cmd, "diverged-factor", "expected 0 (never) or a factor above 1")
	}
	return c.Validate()
}

// checkUsed returns an error for the first flag that has an effect only in evaluation rounds. expected is what the job lacks for them.
func (e *evaluationFlags) checkUsed(cmd *cobra.Command, expected string) error {
	for _, name := range []string{"target", "patience", "diverged-factor", "metrics-out"} {
		if f := cmd.Flag(name); f.Value.String() != f.DefValue {
			return cli.SettingErrorf(cmd, name, "expected %s: without it, the job has no evaluation rounds", expected)
		}
	}
	return nil
}

// component returns the component that evaluates the job of a master. leader returns the master.
func (e *evaluationFlags) component(config *master.Config, leader func() *master.Master, log *logrus.Entry, metrics io.Writer) *rounds.Rounds {
	set := e.dataset()
	c := rounds.Config{Evaluation: e.config, Store: config.Store, Log: log, Figures: e.figures, Metrics: metrics, Refused: set.Refused, Register: func(ctx context.Context) error {
		return leader().ReportSet(ctx, set.SetSpec, set.Paths)
	}}
	if config.Servers != nil {
		c.Models = servedModels{config.Servers}
	}
	return rounds.New(c)
}

// dataset is the dataset of --evaluation-data.
func (e *evaluationFlags) dataset() master.Dataset {
	return master.Dataset{SetSpec: taskqueue.SetSpec{Kind: taskqueue.Evaluation}, Paths: e.data, From: "--evaluation-data"}
}

// checkFiles returns an error for missing files: the job would end with no figure.
func (e *evaluationFlags) checkFiles(ctx context.Context, roots []string) error {
	if _, err := (dataset.Source{Roots: roots}).List(ctx, e.data); err != nil {
		return cli.UsageErrorf("--evaluation-data: %w", err)
	}
	return nil
}

// servedModels are the checkpoint sets of parameter servers.
type servedModels struct{ *pscontrol.Control }

// Pin implements [rounds.Models].
func (s servedModels) Pin(ctx context.Context, use func(model string, version uint64) error) error {
	err := s.Control.Pin(ctx, use)
	if errors.Is(err, pscontrol.ErrNothingToCut) {
		return errors.Join(rounds.ErrNoModel, err)
	}
	return err
}

func evaluateCommand() *cobra.Command {
	return steerCommand(&cobra.Command{
		Use:   "evaluate",
		Short: "Begin an evaluation round",
		Long: `Evaluate begins a round that evaluates the current model on the held-out data of the job. If a round is open, the next
round begins after it. The command ends when the request is stored: master evaluations shows the figures when the round has ended.
The master must have --evaluation-data.`,
		Example: `  master evaluate && master evaluations`,
		Args:    cobra.NoArgs,
	}, func(ctx context.Context, client pb.AdminClient, job string, _ []string) (string, error) {
		_, err := client.Evaluate(ctx, &pb.EvaluateRequest{Job: job})
		return "an evaluation round is requested", err
	})
}

func evaluationsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "evaluations",
		Short: "List evaluation rounds",
		Long: fmt.Sprintf(`Evaluations lists the evaluation rounds of a job with their models and figures, from etcd: no master has to run. The newest
%d rounds are kept. Times are of the clock of the master's machine.`, rounds.KeptRecords),
		Example: `  master evaluations
  master evaluations --data-dir trainmaster-run/001 -o json | jq '.[].figures.accuracy'`,
		Args: cobra.NoArgs,
	}
	from, find := admin.AddRunFlags(cmd)
	format := cli.AddOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := find(); err != nil {
			return err
		}
		list, err := admin.Evaluations(cmd.Context(), from)
		if err != nil {
			return err
		}
		return cli.Render(cmd.OutOrStdout(), *format, list, func(w io.Writer) { view.EvaluationsTable(w, list) })
	}
	return cmd
}
