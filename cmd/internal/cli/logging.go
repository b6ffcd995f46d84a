package cli

import (
	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"
)

// AddLogging gives every command below root the flags --log-level and --log-format.
func AddLogging(root *cobra.Command) {
	level := &choice{value: "info", allowed: []string{"debug", "info", "warning", "error"}}
	format := &choice{value: "text", allowed: []string{"text", "json"}}
	root.PersistentFlags().Var(level, "log-level", "log from this level up, to standard error")
	root.PersistentFlags().Var(format, "log-format", "log format")
	CompleteWords(root, "log-level", level.allowed)
	CompleteWords(root, "log-format", format.allowed)
}

// NewLogger is the logger of one run of cmd, as its flags say; it writes to standard error, which results never use.
func NewLogger(cmd *cobra.Command) *logrus.Logger {
	log := logrus.New()
	log.SetOutput(cmd.ErrOrStderr())
	level, err := logrus.ParseLevel(cmd.Flag("log-level").Value.String())
	if err != nil {
		panic(err) // the flag takes only levels
	}
	log.SetLevel(level)
	if cmd.Flag("log-format").Value.String() == "json" {
		log.SetFormatter(&logrus.JSONFormatter{})
	} else {
		log.SetFormatter(&logrus.TextFormatter{FullTimestamp: true})
	}
	return log
}
