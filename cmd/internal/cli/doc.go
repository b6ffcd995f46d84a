// Package cli implements the common part of all commands. Settings come from flags, environment variables and a config file. The package
// also has the exit codes, the output formats and the checks of paths.
//
// A flag takes precedence over the environment, and the environment over the config file. FinishTree applies the common rules to a tree of
// commands. An error of a command has the exit code of [ExitError]; errors of etcd have [ExitStore], and all others [ExitFailed].
package cli
