package trainer

import (
	"context"
	"errors"

	"github.com/sirupsen/logrus"
)

// ReportDataset registers the files of names, as Client.ReportDataset does, without a session. A program that starts trainers calls
// it. It waits until a master leads.
func ReportDataset(ctx context.Context, config Config, names []string) error {
	if config.Locate == nil {
		return errors.New("trainer.Config.Locate is nil: expected the address of the master")
	}
	if config.Log == nil {
		config.Log = logrus.NewEntry(logrus.StandardLogger())
	}
	l := &link{locate: config.Locate, log: config.Log, patience: answerTimeout, answered: config.Answered}
	defer l.close()
	return report(ctx, l, names)
}
