package main

import (
	"errors"

	"github.com/spf13/cobra"

	"trainmaster/cmd/internal/cli"
	"trainmaster/pserver/optimizer"
	"trainmaster/trainer"
	"trainmaster/trainer/params"
)

// addOptimizer gives cmd the flags of an optimizer. The data chooses the values that are not given; check finds invalid
// values in the rest.
func addOptimizer(cmd *cobra.Command, c *optimizer.Config) (check func() error) {
	for _, setting := range c.Settings() {
		cmd.Flags().Var(setting, setting.Name, setting.Usage)
		if setting.Words != nil {
			cli.CompleteWords(cmd, setting.Name, setting.Words)
		}
	}
	return func() error { return optimizerError(cmd, c.CheckGiven()) }
}

// optimizerError names the flag where err is about a setting of the optimizer.
func optimizerError(cmd *cobra.Command, err error) error {
	if wrong, ok := errors.AsType[*optimizer.FieldError](err); ok {
		return cli.SettingErrorf(cmd, wrong.Setting, "expected %s", wrong.Expected)
	}
	return err
}

// addProtocol gives cmd the flag for the protocol between trainers and masters.
func addProtocol(cmd *cobra.Command) *string {
	words := make([]string, len(trainer.Protocols))
	for i, p := range trainer.Protocols {
		words[i] = string(p)
	}
	return cli.AddChoice(cmd, "protocol", "", "protocol of the calls to the master, which serves both", words...)
}

// addWireDType gives cmd the flag for the data type of parameters and gradients in messages.
func addWireDType(cmd *cobra.Command) *string {
	return cli.AddChoice(cmd, "wire-dtype", "", "type of gradients and parameters in messages; parameter servers store float32", params.WireDTypes()...)
}
