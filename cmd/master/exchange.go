package main

import (
	"github.com/spf13/cobra"

	"trainmaster/pserver/staleness"
	"trainmaster/trainer/model"
	"trainmaster/trainer/params"
	"trainmaster/trainer/reference"
)

// checkTables refuses what does not cover the rows of tables, which models of categories have.
func checkTables(kind, dtype string, e *reference.Exchange) error {
	if !model.OfCategories(kind) {
		return nil
	}
	if err := params.CheckWithTables(params.WireDType(dtype), e.Staleness); err != nil {
		return usageErrorf("--%v", err)
	}
	return nil
}

// addExchange gives cmd the flags of asynchronous training. check finds what makes no sense in them.
func addExchange(cmd *cobra.Command, e *reference.Exchange) (check func(synchronous bool) error) {
	flags := cmd.Flags()
	flags.IntVar(&e.PushEvery, "push-every", 0, "mini-batches whose gradients are pushed together (0: 1)")
	flags.IntVar(&e.PullEvery, "pull-every", 0, "mini-batches after which parameters are pulled, a multiple of --push-every (0: as often as pushed)")
	policy := addChoice(cmd, "staleness-policy", "", "what becomes of a gradient that had more than --staleness updates of others since", staleness.Policies()...)
	flags.Uint64Var(&e.Staleness.Limit, "staleness", 0, "updates of others up to which a gradient is applied as it is")
	return func(synchronous bool) error {
		e.Staleness.Policy = *policy
		if err := e.Staleness.Validate(); err != nil {
			return usageErrorf("--staleness, --staleness-policy: %v", err)
		}
		if err := e.Check(synchronous); err != nil {
			return usageErrorf("%v", err)
		}
		return nil
	}
}
