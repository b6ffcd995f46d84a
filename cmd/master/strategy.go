package main

import (
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"trainmaster/cmd/internal/cli"
	"trainmaster/internal/filekind"
	"trainmaster/local"
	"trainmaster/master/evaluation"
	"trainmaster/master/strategy"
)

// addStrategy gives cmd the flag --strategy.
func addStrategy(cmd *cobra.Command, path *string) {
	cmd.Flags().StringVar(path, "strategy", "", "YAML `file` with schedules of hyper-parameters, rules that end the job, and a population of trainers (default: none)")
}

// readStrategy reads --strategy for a master.
func (s *daemonSettings) readStrategy(cmd *cobra.Command) error {
	if s.config.Queue.Strategy = nil; s.strategy == "" {
		return nil
	}
	file, parsed, err := loadStrategy(s.strategy)
	if err != nil {
		return err
	}
	use := strategyUse{servers: s.ps > 0, sync: s.config.Sync, deterministic: s.config.Deterministic, evaluated: len(s.evaluation.data) > 0, data: "--evaluation-data"}
	if err := use.check(cmd, parsed); err != nil {
		return err
	}
	if parsed.Population != nil {
		s.evaluation.config.Every = evaluation.Every{} // no model is the model of the job
	}
	s.evaluation.figures = map[string]string{}
	for figure, from := range parsed.Figures() {
		s.evaluation.figures[figure] = "--strategy: " + from
	}
	s.config.Queue.Strategy = parsed.OfJob(file, s.ps > 0)
	return nil
}

// takeStrategy reads --strategy for a run. A resumed run has a copy in its directory.
func (r *runFlags) takeStrategy(cmd *cobra.Command) error {
	c := &r.config
	if r.strategy == "" {
		return nil
	}
	path := r.strategy
	if c.Resume {
		path = local.StrategyPath(c.Dir)
	}
	file, parsed, err := loadStrategy(path)
	if err != nil {
		return err
	}
	c.Strategy = file
	if c.Population = parsed.Population != nil; c.Population && !c.Resume && !cmd.Flags().Changed("ps") {
		c.Servers = 0
	}
	use := strategyUse{servers: c.Servers > 0, sync: *r.update == "sync", deterministic: c.Deterministic, evaluated: len(c.Command) == 0, data: "built-in trainers"}
	return use.check(cmd, parsed)
}

// loadStrategy reads and parses a strategy file.
func loadStrategy(path string) (file []byte, parsed *strategy.Strategy, err error) {
	if err := filekind.CheckFile(path); err != nil {
		return nil, nil, cli.UsageErrorf("--strategy %q: %w", path, err)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, cli.UsageErrorf("--strategy: %w", err)
	}
	defer f.Close()
	if file, err = io.ReadAll(io.LimitReader(f, strategy.MaxBytes+1)); err != nil {
		return nil, nil, fmt.Errorf("--strategy %q: %w", path, err)
	}
	if parsed, err = strategy.Parse(file); err != nil {
		return nil, nil, cli.UsageErrorf("--strategy %q: %w", path, err)
	}
	return file, parsed, nil
}

// strategyUse is what a strategy needs to know about its job.
type strategyUse struct {
	servers, sync, deterministic, evaluated bool
	data                                    string // that evaluates the job
}

// check returns an error for a strategy that the job cannot follow.
func (u strategyUse) check(cmd *cobra.Command, s *strategy.Strategy) error {
	if name, ok := s.NeedsSteps(); ok && u.servers && !u.sync {
		return cli.SettingErrorf(cmd, "strategy", "%s: expected no steps and no warm-up with asynchronous parameter servers: the master counts steps with --update-mode sync only", name)
	}
	if err := u.checkRounds(cmd, s); err != nil {
		return err
	}
	if name, ok := s.HasPlateau(); ok && u.deterministic {
		return cli.SettingErrorf(cmd, "strategy", "%s: expected no plateau with --deterministic: a round can end at any step", name)
	}
	if s.Population == nil {
		return nil
	}
	return u.checkPopulation(cmd)
}

// ofJobModel are the flags about the evaluation of the model of a job. A population has no such model.
var ofJobModel = []string{"evaluate-every", "best-metric", "keep-best", "target", "patience", "diverged-factor", "metrics-out", "prediction-data", "explicit-commit"}

// checkPopulation returns an error for a population in a job that cannot have one.
func (u strategyUse) checkPopulation(cmd *cobra.Command) error {
	switch {
	case u.sync:
		return cli.SettingErrorf(cmd, "strategy", "population: expected no --update-mode sync: each trainer has a model of its own")
	case u.servers:
		return cli.SettingErrorf(cmd, "strategy", "population: expected no parameter servers (--ps): each trainer has a model of its own")
	case !u.evaluated:
		return cli.SettingErrorf(cmd, "strategy", "population: expected %s, because figures rank the trainers", u.data)
	}
	return refuse(cmd, ofJobModel, "expected none with a population in --strategy: each trainer has a model of its own")
}

// checkRounds returns an error for a strategy that needs figures of evaluation rounds in a job without them.
func (u strategyUse) checkRounds(cmd *cobra.Command, s *strategy.Strategy) error {
	if name, ok := s.NeedsRounds(); ok && !u.evaluated {
		return cli.SettingErrorf(cmd, "strategy", "%s: expected %s, because the value depends on figures of evaluation rounds", name, u.data)
	}
	return nil
}
