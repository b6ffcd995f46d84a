package reference

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

	"trainmaster/dataset"
	"trainmaster/dataset/convert"
	"trainmaster/dataset/sample"
	"trainmaster/internal/filekind"
	"trainmaster/taskqueue"
	"trainmaster/trainer"
	"trainmaster/trainer/model"
	"trainmaster/trainer/params"
)

// Worker is a whole trainer process: it joins, reports the dataset, trains until the job
// ends and, if elected, saves the model. After the loss of its session it joins again.
type Worker struct {
	Trainer trainer.Config
	Servers func(ctx context.Context) ([]string, error) // addresses of all parameter servers, by index
	// During is [params.Config.During]: it ends waits for a server that was replaced. May be nil.
	During func(parent context.Context, index int, addr string) (context.Context, context.CancelFunc)
	Data   []string // paths and globs of the dataset; empty: the master registers the datasets

	Kind    string // of the model: one of model.Kinds
	Classes int    // 0: 2 for a kind that learns from categories, else what the dataset states, else 10
	Recipe  Recipe
	Seed    uint64 // of the initial parameters

	WireDType params.WireDType // of gradients and parameters in transit; default float32

	SavePath    string // where the elected trainer writes the model; "": nowhere
	JournalPath string // "": no journal
	Log         *logrus.Entry

	// Stored is [Trainer.Stored].
	Stored func(ctx context.Context, round taskqueue.Round) (*StoredModel, error)

	Predict Prediction // zero: this trainer predicts nothing

	// Own trains a model of this trainer alone, without parameter servers: Servers and Stored are not used. The model must have no tables. The
	// learning rate is the hyper-parameter learning-rate of each task, if the job has it.
	Own bool
	own *ownModel // of all sessions

	// Ring trains by all-reduce with the other trainers of the job, without parameter servers: Servers, Stored and Own are not used. The model must have no
	// tables. nil: not by all-reduce.
	Ring *Ring

	RecordDelay time.Duration // waited before each record: makes a small dataset last, for drills
}

// Prediction is how a trainer takes part in prediction.
type Prediction struct {
	Parts Parts // receives the parts; nil: the trainer accepts no prediction tasks
	// Claim claims the parts for the id of the job.
	Claim func(ctx context.Context, id string) error
	// Model predicts, and the trainer accepts no other tasks and needs no parameter servers; nil: the newest parameters of the servers.
	Model *Saved
}

// ErrRival is returned if this trainer and another trainer with the same name end the sessions of each other.
var ErrRival = errors.New("another trainer runs under the same name")

// errNoParameters is returned if the job rolled back to its beginning, or a server was restarted before the first checkpoint set.
var errNoParameters = errors.New("no parameters any more")

const (
	briefSession = 2 * time.Second // a session lost within it was likely taken by another trainer
	maxBrief     = 5               // in a row
)

// rivals counts sessions that were lost soon after their beginning.
type rivals struct{ brief int }

// lost counts a session. It returns ErrRival after too many brief ones in a row.
func (r *rivals) lost(id string, began time.Time) error {
	if r.brief++; time.Since(began) > briefSession {
		r.brief = 0
	}
	if r.brief == maxBrief {
		return fmt.Errorf("%w, %q: %d sessions in a row were lost within %v of their beginning; give each trainer a name of its own", ErrRival, id, r.brief, briefSession)
	}
	return nil
}

// Run returns nil when the job has ended, or when ctx ended and the session was closed.
// An output path that is not writable is an error at the start.
func (w *Worker) Run(ctx context.Context) error {
	if err := w.checkSavePath(); err != nil {
		return err
	}
	var journal *Journal
	if w.JournalPath != "" {
		var err error
		if journal, err = OpenJournal(w.JournalPath); err != nil {
			return err
		}
		defer journal.Close()
	}
	if w.Ring != nil {
		return w.runRing(ctx, journal)
	}
	for r := (rivals{}); ; {
		began := time.Now()
		err := w.session(ctx, journal)
		switch {
		case errors.Is(err, trainer.ErrSessionLost), errors.Is(err, params.ErrFenced):
			if err := r.lost(w.Trainer.ID, began); err != nil {
				return err
			}
			w.Log.Warn("the session was lost, joining again")
		case errors.Is(err, errNoParameters):
			r = rivals{}
			w.Log.WithField("reason", err).Warn("initializing the parameters again: joining again")
		case errors.Is(err, trainer.ErrRolledBack), errors.Is(err, params.ErrRolledBack):
			r = rivals{}
			w.Log.WithField("reason", err).Warn("job rolled back, joining again")
		case ctx.Err() != nil:
			return nil
		default:
			return err
		}
	}
}

// checkSavePath checks before the training that the model can be saved after the training.
func (w *Worker) checkSavePath() error {
	if w.SavePath == "" {
		return nil
	}
	if _, err := os.Stat(w.SavePath); err == nil {
		if err := filekind.CheckFile(w.SavePath); err != nil {
			return fmt.Errorf("save the model as %q: %w", w.SavePath, err)
		}
	}
	probe, err := os.CreateTemp(filepath.Dir(w.SavePath), filepath.Base(w.SavePath)+".probe-*")
	if err != nil {
		if temporary, ok := errors.AsType[*fs.PathError](err); ok { // whose name says nothing to users
			err = temporary.Err
		}
		return fmt.Errorf("save the model as %q: directory %q: expected a writable directory: %w", w.SavePath, filepath.Dir(w.SavePath), err)
	}
	return errors.Join(probe.Close(), os.Remove(probe.Name()))
}

// join begins a session, whose model is the one of current.
func (w *Worker) join(ctx context.Context, current *atomic.Pointer[currentModel]) (*trainer.Client, error) {
	config := w.Trainer
	config.Accepts = taskqueue.KindsOf(taskqueue.Training, taskqueue.Evaluation)
	switch {
	case w.Ring != nil: // the rounds of a job evaluate stored models
		config.Accepts = taskqueue.KindsOf(taskqueue.Training)
	case w.Predict.Model != nil:
		config.Accepts = taskqueue.KindsOf(taskqueue.Prediction)
	case w.Predict.Parts != nil:
		config.Accepts |= taskqueue.KindsOf(taskqueue.Prediction)
	}
	config.Model = func(ctx context.Context) (int64, []byte, error) { return current.Load().content(ctx) }
	config.Evaluate = func(ctx context.Context, _ *taskqueue.Task, records iter.Seq2[[]byte, error]) ([]byte, error) {
		return current.Load().evaluate(ctx, records)
	}
	return trainer.Join(ctx, config)
}

// session is one incarnation of the trainer.
func (w *Worker) session(ctx context.Context, journal *Journal) (err error) {
	before := w.savedModel()
	var current atomic.Pointer[currentModel]
	client, err := w.join(ctx, &current)
	switch {
	case errors.Is(err, io.EOF):
		w.Log.Info("job ended, no master runs")
		return nil
	case err != nil:
		return err
	}
	defer func() {
		if leaving := client.Close(); leaving != nil && err == nil {
			w.Log.WithError(leaving).Debug("leave not sent to the master")
		}
	}()
	log := w.Log.WithFields(logrus.Fields{"ordinal": client.Ordinal(), "incarnation": client.Incarnation()})
	log.Info("joined")
	ctx, release := client.UntilFailed(ctx)
	defer release()
	if w.Predict.Parts != nil {
		if err := w.Predict.Claim(ctx, client.JobID()); err != nil {
			return err
		}
	}
	if w.Predict.Model != nil {
		return w.predictSaved(ctx, client, log)
	}
	p, err := w.prepare(ctx, client, client.Sync(), log)
	switch {
	case errors.Is(err, io.EOF):
		log.Info("job ended")
		return nil
	case errors.Is(err, trainer.ErrDrained):
		log.Info("trainer drained")
		return nil
	case err != nil:
		return err
	}
	tasks, recipe, shape, m := p.tasks, p.recipe, p.shape, p.model
	t := Trainer{ID: w.Trainer.ID, Model: m, BatchSize: recipe.BatchSize, Exchange: recipe.Exchange, Tasks: tasks, Stops: client, Journal: journal, Rounds: client, Stored: w.Stored, Seed: w.Seed, Parts: w.Predict.Parts}
	var servers *params.Client // nil: the model is of this trainer alone
	if w.Own {
		if err := w.trainOwn(&t, client, recipe, log); err != nil {
			return err
		}
	} else {
		if servers, err = w.connect(ctx, client, recipe, m); err != nil {
			return err
		}
		defer servers.Close()
		t.Parameters, t.Rows = servers, servers
	}
	if client.Sync() {
		t.Steps = client
	}
	if client.Cuts() {
		t.Cuts = client
	}
	if w.RecordDelay > 0 {
		t.Tasks = delayed{tasks, w.RecordDelay}
	}
	evaluated, err := model.New(w.Kind, shape)
	if err != nil {
		return err
	}
	current.Store(&currentModel{&t, Saved{Kind: w.Kind, Config: shape}, evaluated, declare(m.Tables(), w.Seed), servers})
	if w.Trainer.Control != "" { // the master reads the progress within a task
		t.Batch = func(records int, lossSum float64) { client.Progressed(records, lossSum/float64(max(records, 1))) }
	}
	t.Report = func(r TaskReport) {
		client.Trained(r.Task, taskqueue.RunStats{Records: int64(r.Records), Seconds: r.Elapsed.Seconds(), PeakMemory: memoryInUse()})
		if t.Batch == nil {
			client.Progressed(r.Records, r.LossSum/float64(max(r.Records, 1)))
		}
		log.WithFields(logrus.Fields{"task": r.Task.Token.String(), "records": r.Records, "version": r.Version, "recomputed": r.Recomputed}).Debug("task trained")
	}
	t.Failed = warnFailed(log)
	switch err := t.Run(ctx); {
	case errors.Is(err, trainer.ErrDrained):
		log.Info("trainer drained")
		return nil
	//guard:reinitializes-without-set
	case errors.Is(err, params.ErrNoSet), client.Cuts() && errors.Is(err, params.ErrUninitialized):
		return fmt.Errorf("%w: %w", errNoParameters, err)
	case err != nil:
		return err
	}
	log.Info("job ended")
	return w.save(ctx, client, t.Parameters, servers, m, shape, p.described, before)
}

// prepared is what a session knows before the training.
type prepared struct {
	tasks     Tasks // of the client; with the first task, if it was taken
	recipe    Recipe
	shape     model.Config
	model     model.Model
	described string // a file of the dataset
}

// prepare reports the dataset, reads its description, and makes the model.
func (w *Worker) prepare(ctx context.Context, client *trainer.Client, synchronous bool, log *logrus.Entry) (p prepared, err error) {
	p.tasks = client
	var data sample.Shape
	if len(w.Data) > 0 {
		if err := client.ReportDataset(ctx, w.Data); err != nil {
			return p, err
		}
		data, p.described, err = w.describe(ctx)
	} else {
		log.Info("waiting for a task of the datasets of the job")
		first := &begun{Tasks: client}
		p.tasks = first
		data, p.described, err = w.describeTask(ctx, first)
	}
	if err != nil {
		return p, err
	}
	if p.recipe, err = w.Recipe.Complete(w.Kind, DatasetLike(w.Kind, data.Features), synchronous); err != nil {
		return p, err
	}
	log.WithField("settings", p.recipe.Optimizer).Info("optimizer chosen")
	p.shape = model.Config{Inputs: data.Features, Classes: w.classes(data), Hidden: p.recipe.Hidden, Rank: p.recipe.Rank, Seed: w.Seed}
	p.model, err = model.New(w.Kind, p.shape)
	return p, err
}

// warnFailed returns a function that logs a task that failed.
func warnFailed(log *logrus.Entry) func(task *taskqueue.Task, reason error) {
	return func(task *taskqueue.Task, reason error) {
		log.WithError(reason).WithField("task", task.Token.String()).Warn("task failed")
	}
}

// predictSaved predicts tasks with a saved model until the job ends.
func (w *Worker) predictSaved(ctx context.Context, client *trainer.Client, log *logrus.Entry) error {
	saved := w.Predict.Model
	m, err := saved.Model()
	if err != nil {
		return err
	}
	var tasks Tasks = client
	if w.RecordDelay > 0 {
		tasks = delayed{client, w.RecordDelay}
	}
	p := predictor{model: m, tasks: tasks, parts: w.Predict.Parts, stops: client, failed: warnFailed(log), tensorsOf: func(batch *model.Batch) ([]model.Tensor, error) {
		if len(saved.Tables) == 0 {
			return saved.Tensors, nil
		}
		return all(saved.Tensors, saved.RowsOf(batch)), nil
	}}
	if err := p.run(ctx); errors.Is(err, trainer.ErrDrained) {
		log.Info("trainer drained")
		return nil
	} else if err != nil {
		return err
	}
	log.Info("job ended")
	return nil
}

// currentModel is the model of a session, for GetModel.
type currentModel struct {
	trainer *Trainer
	saved   Saved       // without tensors and the rows of tables
	model   model.Model // for evaluations
	tables  []params.Table
	servers *params.Client
}

// content returns the model as the bytes of a file of Saved, between two mini-batches.
func (c *currentModel) content(ctx context.Context) (version int64, content []byte, err error) {
	if c == nil || !c.trainer.Between(func(at uint64, parameters []model.Tensor) {
		saved := c.saved
		//guard:sent-model-is-current
		saved.Version, saved.Tensors = at, parameters
		if saved.Tables, err = scanTables(ctx, c.servers, c.tables); err == nil {
			version = int64(at)
			content, err = saved.Bytes()
		}
	}) {
		return 0, nil, trainer.ErrNoModel
	}
	return version, content, err
}

// evaluate measures the model on records, between two mini-batches.
func (c *currentModel) evaluate(ctx context.Context, records iter.Seq2[[]byte, error]) (metrics []byte, err error) {
	ok := false
	if c != nil {
		metrics, ok, err = c.trainer.MeasureCurrent(ctx, c.model, records)
	}
	if !ok {
		return nil, trainer.ErrNoModel
	}
	return metrics, err
}

// scanTables reads the rows of the tables from the parameter servers.
func scanTables(ctx context.Context, servers *params.Client, tables []params.Table) (list []SavedTable, err error) {
	for _, declared := range tables {
		t := SavedTable{Table: declared}
		if err := servers.Scan(ctx, t.Name, func(ids []int64, values []float32) error {
			t.IDs, t.Rows = append(t.IDs, ids...), append(t.Rows, values...)
			return nil
		}); err != nil {
			return nil, fmt.Errorf("read the rows of %q to save: %w", t.Name, err)
		}
		list = append(list, t)
	}
	return list, nil
}

// delayed yields the records of tasks with a pause before each record.
type delayed struct {
	Tasks
	delay time.Duration
}

func (d delayed) Records(task *taskqueue.Task) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		for record, err := range d.Tasks.Records(task) {
			time.Sleep(d.delay)
			if !yield(record, err) {
				return
			}
		}
	}
}

// classes returns the number of classes of the model.
func (w *Worker) classes(data sample.Shape) int {
	if model.OfCategories(w.Kind) {
		return cmp.Or(w.Classes, 2)
	}
	return cmp.Or(w.Classes, data.Classes, 10)
}

// describe reads the description of the dataset in the first record of its first file.
func (w *Worker) describe(ctx context.Context) (shape sample.Shape, path string, err error) {
	listing, err := dataset.Source{AnyURL: true, Stores: w.Trainer.Stores}.List(ctx, w.Data)
	if err != nil {
		return shape, "", fmt.Errorf("look at the dataset: %w", err)
	}
	path = listing.Files[0].Path
	file, err := cmp.Or(w.Trainer.Stores, dataset.DefaultStores).OpenReader(ctx, path)
	if err != nil {
		return shape, "", err
	}
	defer file.Close()
	if shape, err = w.shapeOf(file.Records()); err != nil {
		err = fmt.Errorf("first record of %q: %w", path, err)
	}
	return shape, path, err
}

// shapeOf returns the description in the first record. The error is a *recordError if the record cannot be read.
func (w *Worker) shapeOf(records iter.Seq2[[]byte, error]) (shape sample.Shape, err error) {
	for record, err := range records {
		if err != nil {
			return shape, &recordError{0, err}
		}
		shape, err = model.Shape(w.Kind, record)
		if err == nil && shape.Classes > w.classes(shape) {
			err = fmt.Errorf("the dataset has %d classes, the model %s has %d: %s", shape.Classes, w.Kind, w.classes(shape), w.moreClasses(shape))
		}
		return shape, err
	}
	return shape, errors.New("expected at least one record")
}

// begun are tasks whose first task was taken before the training.
type begun struct {
	Tasks
	first *taskqueue.Task // nil: Next has returned it
}

// Next implements [Tasks].
func (b *begun) Next(ctx context.Context, finished *taskqueue.Task) (*taskqueue.Task, error) {
	if first := b.first; first != nil {
		b.first = nil
		return first, nil
	}
	return b.Tasks.Next(ctx, finished)
}

// describeTask takes the first task, and reads the description of its dataset. A task that cannot be read is returned to the queue.
func (w *Worker) describeTask(ctx context.Context, b *begun) (shape sample.Shape, path string, err error) {
	for {
		task, err := b.Tasks.Next(ctx, nil)
		if err != nil {
			return shape, "", err
		}
		path = task.Chunks[0].Path
		shape, err = w.shapeOf(b.Records(task))
		if err == nil {
			b.first = task
			return shape, path, nil
		}
		//guard:unreadable-first-task-returned
		if _, isRecord := errors.AsType[*recordError](err); !isRecord {
			return shape, "", fmt.Errorf("first record of a task in %q: %w", path, err)
		}
		w.Log.WithError(err).WithField("task", task.Token.String()).Warn("task failed")
		if err := b.Fail(ctx, task, err); err != nil {
			return shape, "", err
		}
	}
}

// moreClasses returns the remedy for a dataset with more classes than the model.
func (w *Worker) moreClasses(data sample.Shape) string {
	if model.OfCategories(w.Kind) {
		return "make two classes of the labels, with --label-above of `master recordio convert`"
	}
	return fmt.Sprintf("omit --classes, or start with --classes %d", data.Classes)
}

func (w *Worker) connect(ctx context.Context, client *trainer.Client, recipe Recipe, m model.Model) (*params.Client, error) {
	config := params.Config{
		Addrs: w.Servers, During: w.During, Mode: params.Async, Ordinal: uint32(client.Ordinal()), Incarnation: client.Incarnation(), Log: w.Log,
		Optimizer: recipe.Optimizer, Tables: declare(m.Tables(), w.Seed), Staleness: recipe.Exchange.Staleness, WireDType: w.WireDType, JobID: client.JobID(), JobEpoch: client.Epoch(),
	}
	if client.Sync() {
		config.Mode = params.Sync
	}
	servers, err := params.Connect(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("connect to the parameter servers: %w", err)
	}
	return servers, nil
}

// savedModel returns the description of the file of the model; nil if there is no file.
func (w *Worker) savedModel() os.FileInfo {
	info, err := os.Stat(w.SavePath)
	if err != nil {
		return nil
	}
	return info
}

// savedSince reports whether the file of the model differs from before.
func (w *Worker) savedSince(before os.FileInfo) bool {
	now := w.savedModel()
	return now != nil && (before == nil || !os.SameFile(before, now) || !before.ModTime().Equal(now.ModTime()))
}

// ErrNoSaver is returned by a trainer that finds no master after the end of the job. Another trainer may have saved the model before.
var ErrNoSaver = errors.New("no master runs to elect the saver")

// save writes the model if this trainer is elected.
func (w *Worker) save(ctx context.Context, client *trainer.Client, parameters Parameters, servers *params.Client, m model.Model, shape model.Config, described string, before os.FileInfo) error {
	if w.SavePath == "" {
		return nil
	}
	elected, err := client.RequestSaveModel(ctx)
	switch {
	case errors.Is(err, io.EOF) && w.savedSince(before):
		w.Log.Info("another trainer has saved the model")
		return nil
	case errors.Is(err, io.EOF):
		return fmt.Errorf("model not saved by this trainer: %w: start a master and a trainer again", ErrNoSaver)
	case err != nil || !elected:
		return err
	}
	tensors := m.Parameters()
	version, err := parameters.Pull(ctx, shareTensors(tensors), 0)
	if err != nil {
		return fmt.Errorf("pull the parameters to save: %w", err)
	}
	saved := Saved{Kind: w.Kind, Config: shape, Version: version, Tensors: tensors}
	if saved.Meaning, err = convert.MeaningOf(described); err != nil {
		w.Log.WithError(err).Warn("meaning of labels and features not saved with the model")
	}
	if saved.Tables, err = scanTables(ctx, servers, declare(m.Tables(), w.Seed)); err != nil {
		return err
	}
	if err := saved.Write(w.SavePath); err != nil {
		return err
	}
	w.Log.WithFields(logrus.Fields{"path": w.SavePath, "version": version}).Info("model saved")
	return nil
}
