package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"trainmaster/local"
)

const (
	exitOK     = 0
	exitFailed = 1 // the job failed, or a check found something wrong
	exitUsage  = 2 // the command line, the environment or the config file is wrong
	exitStore  = 3 // the store is unreachable, refused us, or has a full disk

	exitInterrupted = 130 // a signal ended the command before it was done, as a shell reports SIGINT

	exitSetAside = local.ExitSetAside // the job ended without the tasks that are set aside
)

// exitError is an error that knows the exit code it deserves.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

// usageErrorf is an error of the user's command line or settings: exit code 2.
func usageErrorf(format string, args ...any) error {
	return &exitError{exitUsage, fmt.Errorf(format, args...)}
}

// exitCode is the code that err deserves. Commands' own errors are marked by markFailures, so whatever bears no code
// was found by cobra before any command ran, and that is usage.
func exitCode(err error) int {
	if e, ok := errors.AsType[*exitError](err); ok {
		return e.code
	}
	return exitUsage
}

// markFailures makes a command's errors exit with 1, or 3 when etcd is to blame, unless they name another code.
func markFailures(cmd *cobra.Command) {
	inner := cmd.RunE
	if inner == nil {
		return
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		err := inner(cmd, args)
		if err == nil {
			return nil
		}
		if _, ok := errors.AsType[*exitError](err); ok {
			return err
		}
		if isStoreError(err) {
			return &exitError{exitStore, err}
		}
		return &exitError{exitFailed, err}
	}
}

// oneLine brings cobra's suggestions, which span lines, into one.
func oneLine(err error) string {
	what, suggestions, ok := strings.Cut(err.Error(), "\n\nDid you mean this?\n")
	if !ok {
		return what
	}
	return what + "; did you mean " + strings.Join(strings.Fields(suggestions), " or ") + "?"
}
