// Package cli implements what the commands of master have in common: settings from flags, environment variables and a config file, exit
// codes, output formats, refreshed output, and checks of paths.
//
// A flag takes precedence over the environment, and the environment over the config file. FinishTree applies the common rules to a tree of
// commands. An error of a command has the exit code of [ExitError]; errors of etcd have [ExitStore], and all others [ExitFailed].
package cli
