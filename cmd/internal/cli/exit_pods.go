package cli

import (
	"errors"
	"os"
	"strings"

	"github.com/spf13/cobra"
)

// The exit codes with --exit-codes pod, where they differ from the default. A Job of Kubernetes fails at ExitPodUsage and ExitPodFailed,
// which another start would repeat, and starts another pod after all other codes but 0. The code 2 remains for a panic of Go.
const (
	ExitPodUsage   = 64  // ExitUsage; EX_USAGE of sysexits.h.
	ExitPodFailed  = 65  // the job failed, or ended without tasks that are set aside.
	ExitPodAway    = 75  // ExitStore: no etcd or no master; EX_TEMPFAIL of sysexits.h.
	ExitPodStopped = 143 // a signal stopped the process before the end of the job, as a shell reports SIGTERM
)

const (
	exitCodesFlag    = "exit-codes"
	exitCodesDefault = "default"
	exitCodesPod     = "pod"
)

// AddExitCodes gives every command below root the flag --exit-codes.
func AddExitCodes(root *cobra.Command) {
	codes := &choice{value: exitCodesDefault, allowed: []string{exitCodesDefault, exitCodesPod}}
	root.PersistentFlags().Var(codes, exitCodesFlag, "exit codes; pod: 64 wrong usage, 65 job failed or incomplete, 75 etcd or master unreachable, 143 stopped by a signal")
	CompleteWords(root, exitCodesFlag, codes.allowed)
}

// UsesPodCodes reports whether --exit-codes is pod. cmd may have failed before its flags or settings were read: then the arguments of the
// process and the environment count.
func UsesPodCodes(cmd *cobra.Command, args []string) bool {
	if f := cmd.Root().PersistentFlags().Lookup(exitCodesFlag); f != nil && f.Changed {
		return f.Value.String() == exitCodesPod
	}
	for i, arg := range args {
		switch value, ok := strings.CutPrefix(arg, "--"+exitCodesFlag+"="); {
		case arg == "--":
			return os.Getenv(EnvName(exitCodesFlag)) == exitCodesPod
		case ok:
			return value == exitCodesPod
		case arg == "--"+exitCodesFlag && i+1 < len(args):
			return args[i+1] == exitCodesPod
		}
	}
	return os.Getenv(EnvName(exitCodesFlag)) == exitCodesPod
}

// podError is an error only with --exit-codes pod. Without it, the exit code is 0 and no message is printed.
type podError struct {
	code int
	text string
}

func (e *podError) Error() string { return e.text }

var (
	// ErrStopped: a signal stopped a process of a job, which ended gracefully before the end of the job.
	ErrStopped error = &podError{ExitPodStopped, "stopped by a signal before the end of the job: start it again to continue"}

	// ErrOutcomeUnknown: a master has ended and cannot read whether its job is complete.
	ErrOutcomeUnknown error = &podError{ExitFailed, "the outcome of the job is unknown: start the master again to see it"}

	// ErrStoppedFailed: a signal stopped the master of a job that has failed.
	ErrStoppedFailed error = &podError{ExitPodFailed, "the job has failed"}
)

// OnlyInPods reports whether err counts only with --exit-codes pod.
func OnlyInPods(err error) bool {
	_, ok := errors.AsType[*podError](err)
	return ok
}

// PodCode returns the exit code with --exit-codes pod for an exit code without it. failed: because the job has failed. signaled: a signal
// has asked the process to stop; an error after it is part of the stop.
func PodCode(code int, failed, signaled bool) int {
	switch {
	case code == ExitUsage:
		return ExitPodUsage
	case code == ExitSetAside, code == ExitFailed && failed:
		return ExitPodFailed
	case code == ExitInterrupted, signaled && (code == ExitFailed || code == ExitStore):
		return ExitPodStopped
	//guard:unreachable-store-in-a-pod
	case code == ExitStore:
		return ExitPodAway
	}
	return code
}
