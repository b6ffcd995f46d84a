package master

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"trainmaster/dataset"
	"trainmaster/master/component"
	"trainmaster/taskqueue"
)

// Dataset is a dataset that the master registers itself, not a trainer.
type Dataset struct {
	taskqueue.SetSpec
	Paths []string // paths, globs and URLs of the files
	From  string   // of the setting, for errors, such as "--dataset books"
}

// ErrBadDataset is returned if the files of a dataset of the configuration cannot be registered.
var ErrBadDataset = errors.New("dataset cannot be registered")

// ofMaster returns the names of the datasets of a kind that the master registers.
func (c Config) ofMaster(kind taskqueue.Kind) (names []string) {
	for _, d := range c.Datasets {
		if d.Kind == kind {
			names = append(names, d.WithDefaults().Name)
		}
	}
	return names
}

// datasetSetting describes the training datasets for Settings. Later changes of a weight are in the state of the job.
func (c Config) datasetSetting() string {
	var list []string
	for _, d := range c.Datasets {
		if s := d.WithDefaults(); s.Kind == taskqueue.Training {
			text := fmt.Sprintf("%s weight %d", s.Name, s.Weight)
			if s.Passes > 0 {
				text += fmt.Sprintf(" passes %d", s.Passes)
			}
			if s.Online {
				text += " online"
			}
			list = append(list, text)
		}
	}
	if len(list) == 0 {
		return "of trainers"
	}
	return strings.Join(list, ", ")
}

// validateDatasets returns an error of the first invalid dataset.
func (c Config) validateDatasets() error {
	for _, d := range c.Datasets {
		if err := d.Validate(); err != nil {
			return fmt.Errorf("dataset: %w", err)
		}
	}
	//guard:deterministic-job-has-one-dataset
	if n := len(c.ofMaster(taskqueue.Training)); c.Deterministic && n > 1 {
		return fmt.Errorf("deterministic: expected one dataset, found %d: which trainer gets a task of which dataset depends on time", n)
	}
	return c.validateOnline()
}

// datasets is the component that registers the datasets of the configuration, in their order, and appends new files to the online ones.
type datasets struct {
	config Config
	report func(context.Context, taskqueue.SetSpec, []string) error
	append func(context.Context, Dataset) (Appended, error)
}

// Name implements [component.Component].
func (*datasets) Name() string { return "datasets" }

// Init implements [component.Component].
func (*datasets) Init(context.Context) error { return nil }

// Prepare implements [component.Component].
func (*datasets) Prepare(context.Context, component.Term) error { return nil }

// Run registers the datasets, and appends new files until the end of the term.
func (d *datasets) Run(ctx context.Context, t component.Term) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		for _, set := range d.config.Datasets {
			if err := d.register(ctx, t, set); err != nil {
				return err
			}
			if set.Online {
				group.Go(func() error { return d.watch(ctx, t, set) })
			}
		}
		<-ctx.Done()
		return context.Cause(ctx)
	})
	return group.Wait()
}

// Limits of the pause before a registration is repeated.
const (
	registerPause    = time.Second
	registerPauseMax = time.Minute
)

// register registers a dataset. It repeats the attempt if etcd or an object store does not answer, and if the dataset is registered already:
// its tasks can be trained while this master cannot read the files.
func (d *datasets) register(ctx context.Context, t component.Term, set Dataset) error {
	for pause := registerPause; ; pause = min(2*pause, registerPauseMax) {
		spec := set.SetSpec
		if spec.Kind == taskqueue.Training {
			spec.Shuffle, spec.Seed = d.config.Shuffle, d.config.Seed
		}
		err := d.report(ctx, spec, set.Paths)
		if err == nil || ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if errors.Is(err, component.ErrPanic) {
			return err
		}
		known := false
		if err := t.Read(ctx, func(q *taskqueue.Queue) { _, known = q.Set(set.WithDefaults().Name) }); err != nil {
			return err
		}
		if refused := set.Refused(err, known); refused != nil {
			return refused
		}
		d.config.Log.WithError(err).WithField("dataset", set.WithDefaults().Name).Warn("dataset not registered, retrying")
		t.Clock().Sleep(ctx, pause)
	}
}

// Refused returns the error that ends a master after a failed registration of the dataset. It is [ErrOtherJob] for other files than the
// dataset of the job has. It is [ErrBadDataset] for unusable files of a dataset that is not known yet. Refused returns nil if another
// attempt can succeed.
func (d Dataset) Refused(err error, known bool) error {
	_, isFiles := errors.AsType[*dataset.FilesError](err)
	switch {
	//guard:other-files-of-a-dataset-end-the-master
	case errors.Is(err, taskqueue.ErrOtherDataset):
		return fmt.Errorf("%w: %s: %w", ErrOtherJob, d.From, err)
	//guard:unreadable-dataset-ends-the-master
	case !known && isFiles && !errors.Is(err, dataset.ErrStore):
		return fmt.Errorf("%w: %s: %w", ErrBadDataset, d.From, err)
	}
	return nil
}
