package main

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"trainmaster/cmd/internal/cli"
	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/taskqueue"
)

func jobCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "job",
		Short:   "Change a running job",
		Long:    `Job changes settings of a running job. Its commands send a request to the leader, and return when the change is committed.`,
		Example: `  master job set learning-rate=0.001`,
	}
	cmd.AddCommand(jobSetCommand())
	return cmd
}

// settingOfWeight begins the name of the setting of a dataset's weight.
const settingOfWeight = "weight."

func jobSetCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "set KEY=VALUE...",
		Short: "Change settings of a running job",
		Long: `Set changes settings of a running job, all or none of them, and returns when the change is committed. The settings hold for the rest of
the job, also after a failover. --resume restores the settings of its checkpoint set.

learning-rate=RATE is the learning rate of the parameter servers before their schedule, as in --learning-rate of the trainers. A
synchronous job uses the new rate from its next version on, and the same rates for versions that a rollback repeats. An asynchronous
job uses it from the next update of each server on. The servers must have parameters.

weight.NAME=N is the share of dispatched tasks of a dataset among the datasets of its kind, 1 to 1,000,000.`,
		Example: `  # a tenth of the learning rate with which the job began
  master job set learning-rate=0.001

  # three tasks of the dataset books for each task of the dataset news
  master job set weight.books=3 weight.news=1`,
		Args: cobra.MinimumNArgs(1),
	}
	request := &pb.SetJobRequest{}
	cmd = steerCommand(cmd, func(ctx context.Context, client pb.AdminClient, job string, _ []string) (string, error) {
		request.Job = job
		reply, err := client.SetJob(ctx, request)
		return settingsText(request, reply.GetLearningRate()), err
	})
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := parseSettings(request, args); err != nil {
			return err
		}
		return run(cmd, args)
	}
	return cmd
}

// parseSettings reads KEY=VALUE into a request.
func parseSettings(request *pb.SetJobRequest, args []string) error {
	request.Weights = map[string]uint32{}
	for _, arg := range args {
		key, value, _ := strings.Cut(arg, "=")
		name, isWeight := strings.CutPrefix(key, settingOfWeight)
		switch {
		case key == "learning-rate" && request.LearningRate == nil:
			rate, err := strconv.ParseFloat(value, 32)
			if err != nil || !(rate > 0) || math.IsInf(rate, 0) || float32(rate) == 0 {
				return cli.UsageErrorf("%q: expected learning-rate=RATE with a number above 0", arg)
			}
			request.LearningRate = new(float32(rate))
		case isWeight && name != "" && request.Weights[name] == 0:
			weight, err := strconv.ParseUint(value, 10, 32)
			if err != nil || weight < 1 || weight > taskqueue.MaxWeight {
				return cli.UsageErrorf("%q: expected weight.NAME=N with N from 1 to %d", arg, taskqueue.MaxWeight)
			}
			request.Weights[name] = uint32(weight)
		default:
			return cli.UsageErrorf("%q: expected learning-rate=RATE or weight.NAME=N, each once", arg)
		}
	}
	return nil
}

// settingsText describes the changes.
func settingsText(request *pb.SetJobRequest, rate *pb.LearningRate) string {
	var said []string
	if rate != nil {
		from := "from the next update of each parameter server on"
		if v := rate.GetFromVersion(); v > 0 {
			from = fmt.Sprintf("from version %d on", v)
		}
		said = append(said, fmt.Sprintf("the learning rate is %v (%.4g times the rate at the start), %s", rate.GetRate(), rate.GetScale(), from))
	}
	for _, name := range slices.Sorted(maps.Keys(request.GetWeights())) {
		said = append(said, fmt.Sprintf("the weight of %s is %d", name, request.GetWeights()[name]))
	}
	return strings.Join(said, "; ")
}
