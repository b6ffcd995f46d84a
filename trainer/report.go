package trainer

import (
	"context"
)

// ReportDataset registers the files of names, as Client.ReportDataset does, without a session. A program that starts trainers calls
// it. It waits until a master leads.
func ReportDataset(ctx context.Context, config Config, names []string) error {
	l, err := newLink(config)
	if err != nil {
		return err
	}
	defer l.close()
	return report(ctx, l, names)
}
