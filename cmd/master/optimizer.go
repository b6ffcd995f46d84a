package main

import (
	"errors"

	"github.com/spf13/cobra"

	"trainmaster/pserver/optimizer"
	"trainmaster/trainer/params"
)

// addOptimizer gives cmd the flags of an optimizer. What is not given is chosen by the data; check finds what makes no
// sense in the rest.
func addOptimizer(cmd *cobra.Command, c *optimizer.Config) (check func() error) {
	for _, setting := range c.Settings() {
		cmd.Flags().Var(setting, setting.Name, setting.Usage)
		if setting.Words != nil {
			completeWords(cmd, setting.Name, setting.Words)
		}
	}
	return func() error { return optimizerError(cmd, c.CheckGiven()) }
}

// optimizerError names the flag where err is about a setting of the optimizer.
func optimizerError(cmd *cobra.Command, err error) error {
	if wrong, ok := errors.AsType[*optimizer.FieldError](err); ok {
		return settingErrorf(cmd, wrong.Setting, "expected %s", wrong.Expected)
	}
	return err
}

// addWireDType gives cmd the flag that says what goes between trainers and parameter servers.
func addWireDType(cmd *cobra.Command) *string {
	return addChoice(cmd, "wire-dtype", "", "gradients and parameters on their way to the parameter servers and back; there they are float32", params.WireDTypes()...)
}
