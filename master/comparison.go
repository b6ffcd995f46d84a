package master

import (
	"context"
	"fmt"
	"slices"
	"time"

	"trainmaster/dataset"
	"trainmaster/master/committer"
	"trainmaster/taskqueue"
)

// comparison compares the files that a standby finds with the datasets of the job, each dataset once in a campaign.
type comparison struct {
	config Config
	begun  map[string]bool         // by name of the dataset
	refuse context.CancelCauseFunc // ends the campaign
}

// compareWait is the time that a standby waits for the list of its files before it counts as warm. A later difference still ends it.
const compareWait = 10 * time.Second

// run compares the datasets that it has not compared before. It returns when this is done, after compareWait, or when ctx ends, which is
// at a takeover: a file system or a store that hangs delays no takeover.
func (c comparison) run(ctx context.Context, known *committer.TableCache) error {
	var todo []Dataset
	for _, d := range slices.Concat(c.config.Datasets, c.config.ComponentDatasets) {
		name := d.WithDefaults().Name
		if _, _, ok := known.Dataset(name); ok && !d.Online && !c.begun[name] {
			c.begun[name], todo = true, append(todo, d)
		}
	}
	if len(todo) == 0 {
		return nil
	}
	done := make(chan error, 1)
	go func() { // without an owner: a call of a file system that hangs cannot be ended
		err := c.compare(ctx, todo, known)
		if err != nil {
			c.refuse(err)
		}
		done <- err
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(compareWait):
		c.config.Log.WithField("after", compareWait.String()).Warn("files of the datasets not listed yet: this standby is not compared with the job")
		return nil
	}
}

// compare returns ErrOtherJob for the first dataset with other files than the dataset of the job has. Files that cannot be read are a
// warning: trainers may be able to read them.
func (c comparison) compare(ctx context.Context, todo []Dataset, known *committer.TableCache) error {
	for _, d := range todo {
		table, digest, _ := known.Dataset(d.WithDefaults().Name)
		found, err := dataset.Source{Roots: c.config.Roots}.List(ctx, d.Paths)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			c.config.Log.WithError(err).WithField("dataset", d.WithDefaults().Name).Warn("files of the dataset not compared with the job")
		//guard:standby-compares-files
		case found.Digest != digest:
			return fmt.Errorf("%w: %s: %w", ErrOtherJob, d.From, difference(entriesOf(table.Files()), found))
		}
	}
	return nil
}

// entriesOf returns the paths and sizes of the files of a table.
func entriesOf(files []taskqueue.File) []dataset.Entry {
	list := make([]dataset.Entry, len(files))
	for i, f := range files {
		list[i] = dataset.Entry{Path: f.Path, Size: f.Size}
	}
	return list
}

// difference is the difference between a listing and the files of a registered dataset.
func difference(registered []dataset.Entry, found dataset.Listing) error {
	text := dataset.Difference(registered, found.Entries())
	if text == "" {
		text = "the same paths and sizes, but the files begin with other bytes"
	}
	return fmt.Errorf("%w: %s", taskqueue.ErrOtherDataset, text)
}
