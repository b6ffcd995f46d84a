package main

import (
	"errors"

	"github.com/spf13/cobra"

	"trainmaster/pserver/optimizer"
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
	return func() error {
		err := c.CheckGiven()
		if wrong, ok := errors.AsType[*optimizer.FieldError](err); ok {
			return settingErrorf(cmd, wrong.Setting, "expected %s", wrong.Expected)
		}
		return err
	}
}
