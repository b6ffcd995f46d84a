package main

import (
	"github.com/spf13/cobra"

	"trainmaster/cmd/internal/cli"
	"trainmaster/pserver/staleness"
	"trainmaster/trainer/model"
	"trainmaster/trainer/params"
	"trainmaster/trainer/reference"
)

// checkTables refuses a wire type that the embedding tables of a model of categories do not support.
func checkTables(kind, dtype string) error {
	if !model.OfCategories(kind) {
		return nil
	}
	if err := params.CheckWithTables(params.WireDType(dtype)); err != nil {
		return cli.UsageErrorf("--%v", err)
	}
	return nil
}

// addExchange gives cmd the flags of asynchronous training. check finds what makes no sense in them.
func addExchange(cmd *cobra.Command, e *reference.Exchange) (check func(synchronous bool) error) {
	flags := cmd.Flags()
	flags.IntVar(&e.PushEvery, "push-every", 0, "mini-batches whose gradients are pushed together (0: 1)")
	flags.IntVar(&e.PullEvery, "pull-every", 0, "mini-batches after which parameters are pulled, a multiple of --push-every (0: as often as pushed)")
	policy := cli.AddChoice(cmd, "staleness-policy", "", "treatment of gradients that missed more than --staleness updates of other trainers", staleness.Policies()...)
	flags.Uint64Var(&e.Staleness.Limit, "staleness", 0, "updates of other trainers that a gradient may miss before --staleness-policy applies")
	return func(synchronous bool) error {
		e.Staleness.Policy = *policy
		if err := e.Staleness.Validate(); err != nil {
			return cli.UsageErrorf("--staleness, --staleness-policy: %v", err)
		}
		if err := e.Check(synchronous); err != nil {
			return cli.UsageErrorf("%v", err)
		}
		return nil
	}
}
