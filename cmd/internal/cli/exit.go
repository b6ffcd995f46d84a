package cli

import (
	"errors"
	"strings"

	"github.com/spf13/cobra"

	"trainmaster/internal/usage"
	"trainmaster/local"
)

// The exit codes of all commands.
const (
	ExitOK     = 0
	ExitFailed = 1 // the job failed, or a check found something wrong
	ExitUsage  = 2 // the command line, the environment or the config file is wrong
	ExitStore  = 3 // etcd is unreachable, refuses the connection, or has a full disk

	ExitInterrupted = 130 // a signal ended the command before it was done, as a shell reports SIGINT

	ExitSetAside = local.ExitSetAside // the job ended without the tasks that are set aside
)

// ExitError is an error with an exit code.
type ExitError struct {
	code int
	err  error
}

func (e *ExitError) Error() string { return e.err.Error() }

func (e *ExitError) Unwrap() error { return e.err }

// ExitWith returns err with an exit code.
func ExitWith(code int, err error) error { return &ExitError{code, err} }

// CommandError is the end of a command that a process ran for the user. Its exit code is the code of the process, also with --exit-codes pod.
type CommandError struct {
	Code int
	Err  error
}

func (e *CommandError) Error() string { return e.Err.Error() }

func (e *CommandError) Unwrap() error { return e.Err }

// UsageErrorf returns a [usage.Error]: an error of the user's command line or settings: exit code 2.
func UsageErrorf(format string, args ...any) error {
	return usage.Errorf(format, args...)
}

// ExitCode returns the exit code of err. An error without a code comes from cobra, before a command ran: it is a usage error, since
// markFailures gives all errors of commands a code.
func ExitCode(err error) int {
	if e, ok := errors.AsType[*CommandError](err); ok {
		return e.Code
	}
	if e, ok := errors.AsType[*ExitError](err); ok {
		return e.code
	}
	if e, ok := errors.AsType[*podError](err); ok {
		return e.code
	}
	return ExitUsage
}

// OfCommand reports whether err is a [CommandError].
func OfCommand(err error) bool {
	_, ok := errors.AsType[*CommandError](err)
	return ok
}

// hasCode reports whether err is an [ExitError], a [CommandError] or a usage error.
func hasCode(err error) bool {
	_, ok := errors.AsType[*ExitError](err)
	return ok || OfCommand(err) || usage.Is(err)
}

// markFailures gives the errors of a command an exit code, unless they have one: ExitStore if etcd is the cause, else ExitFailed.
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
		if hasCode(err) || OnlyInPods(err) {
			return err
		}
		if isStoreError(err) {
			return ExitWith(ExitStore, err)
		}
		return ExitWith(ExitFailed, err)
	}
}

// OneLine brings cobra's suggestions, which span lines, into one.
func OneLine(err error) string {
	what, suggestions, ok := strings.Cut(err.Error(), "\n\nDid you mean this?\n")
	if !ok {
		return what
	}
	return what + "; did you mean " + strings.Join(strings.Fields(suggestions), " or ") + "?"
}
