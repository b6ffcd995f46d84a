package master

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"trainmaster/dataset"
	"trainmaster/master/committer"
	"trainmaster/master/component"
	"trainmaster/taskqueue"
)

// reporter registers the dataset. Reports that come while the files of another one are read
// wait for it, so that concurrent first reports share one scan. The wait ends with the caller.
type reporter struct {
	one     detached
	checked recentReports
	indexer dataset.Indexer
	source  dataset.Source
	now     registration
}

// ReportDataset registers the files that match names (paths and globs) as the dataset for training.
func (m *Master) ReportDataset(ctx context.Context, names []string) error {
	//guard:datasets-of-the-master-only
	if len(m.config.Datasets) > 0 {
		own := strings.Join(slices.Concat(m.config.ofMaster(taskqueue.Training), m.config.ofMaster(taskqueue.Prediction)), ", ")
		return fmt.Errorf("%w: the master registers the datasets of this job (%s): start trainers without --data, and do not report a dataset", taskqueue.ErrOtherDataset, own)
	}
	return m.ReportSet(ctx, m.trainingSet(), names)
}

// trainingSet is the dataset of a report without a name.
func (m *Master) trainingSet() taskqueue.SetSpec {
	return taskqueue.SetSpec{Name: taskqueue.Training.String(), Shuffle: m.config.Shuffle, Seed: m.config.Seed}
}

// ReportSet registers the files that match names (paths and globs) as a dataset of the job. The same dataset again succeeds without a
// scan. Another dataset with the same name is an error with the difference.
func (m *Master) ReportSet(ctx context.Context, spec taskqueue.SetSpec, names []string) error {
	t, err := m.dispatching()
	if err != nil {
		return err
	}
	if err := spec.Validate(); err != nil {
		return err
	}
	spec = spec.WithDefaults()
	if spec.Online {
		return m.registerOnline(ctx, t, spec)
	}
	if len(names) > maxNames {
		return fmt.Errorf("%d names: expected at most %d; name the files by a glob", len(names), maxNames)
	}
	given := digestOf(names)
	if digest, known, err := t.dataset(ctx, spec.Name); err != nil || known && m.reports.checked.has(digest, given) {
		return err
	}
	_, err = readFiles(ctx, &m.reports, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, m.reportFiles(ctx, t, spec, names, given)
	})
	return err
}

// filesPatience is how long a report waits after the end of its context for a file that it reads.
const filesPatience = 2 * time.Second

// readFiles runs a call that lists and reads files. It returns soon after ctx has ended, also if the file system hangs: the leader must resign then,
// and the caller of an append must be answered.
func readFiles[V any](ctx context.Context, r *reporter, call func(context.Context) (V, error)) (V, error) {
	//guard:hung-files-keep-no-lock
	v, err := await(ctx, r.one, filesPatience, call)
	if errors.Is(err, errHangs) {
		r.one.log.Warn("files of a dataset not read: their file system does not answer")
		err = fmt.Errorf("read the files of a dataset on the master's machine: expected an answer of the file system, found none: check its mount: %w", err)
	}
	return v, err
}

// reportFiles registers files, with the semaphore of the reports.
func (m *Master) reportFiles(ctx context.Context, t *term, spec taskqueue.SetSpec, names []string, given [32]byte) error {
	began := time.Now()
	digest, known, err := t.dataset(ctx, spec.Name)
	if err != nil || known && m.reports.checked.has(digest, given) { // by the report that had the semaphore before
		return err
	}
	m.reports.source.Progress = nil
	if known {
		if err := m.comparePaths(ctx, t, spec.Name, names); err != nil {
			return err
		}
	} else {
		defer m.reports.now.end()
		m.reports.source.Progress = m.reports.now.step(m.config.Log, listing)
	}
	//guard:report-within-roots
	found, err := m.reports.source.List(ctx, names)
	if err != nil {
		return fmt.Errorf("on the master's machine: %w", err)
	}
	if known {
		//guard:dataset-compared
		if digest != found.Digest {
			return t.difference(ctx, spec.Name, found)
		}
		//guard:report-cache
		m.reports.checked.add(digest, given)
		return nil
	}
	log := m.config.Log.WithField("files", len(found.Files))
	log.Info(indexing)
	m.reports.indexer.Progress = m.reports.now.step(log, indexing)
	table, err := TableOf(ctx, &m.reports.indexer, found)
	if err != nil {
		return err
	}
	chunks := table.Chunks()
	if err := m.config.group(table); err != nil {
		return err
	}
	if tasks := table.Tasks(); tasks < 4*m.config.Trainers {
		log.WithFields(logrus.Fields{"tasks": tasks, "trainers": m.config.Trainers}).Warn("fewer than 4 tasks for each trainer: some will idle at the end of a pass; write smaller chunks, with --records-per-chunk of recordio convert")
	}
	if err := m.register(ctx, t, spec, table, found.Digest); err != nil {
		return err
	}
	log.WithFields(logrus.Fields{"chunks": chunks, "tasks": table.Tasks(), "records": table.Records(), "took": time.Since(began).Round(time.Millisecond).String()}).Info("dataset indexed")
	return nil
}

// dataset returns the digest of a registered dataset.
func (t *term) dataset(ctx context.Context, name string) (digest [32]byte, known bool, err error) {
	err = t.Read(ctx, func(q *taskqueue.Queue) {
		if set, ok := q.Set(name); ok {
			digest, known = q.SetDigest(set)
		}
	})
	return digest, known, err
}

// comparePaths refuses a report of other paths than the registered ones. It opens no file.
func (m *Master) comparePaths(ctx context.Context, t *term, name string, names []string) error {
	paths, err := m.reports.source.Paths(ctx, names)
	if err != nil {
		return fmt.Errorf("on the master's machine: %w", err)
	}
	registered, err := t.entries(ctx, name)
	if err != nil {
		return err
	}
	if slices.EqualFunc(registered, paths, func(e dataset.Entry, path string) bool { return e.Path == path }) {
		return nil
	}
	sizes := map[string]int64{}
	for _, e := range registered {
		sizes[e.Path] = e.Size
	}
	given := make([]dataset.Entry, len(paths))
	for i, path := range paths {
		given[i] = dataset.Entry{Path: path, Size: sizes[path]} // only the paths are compared
	}
	if text := dataset.Difference(registered, given); text != "" {
		return fmt.Errorf("%w: %s", taskqueue.ErrOtherDataset, text)
	}
	return nil
}

// TableOf reads the chunks of files. The caller sets the number of chunks per task.
func TableOf(ctx context.Context, indexer *dataset.Indexer, found dataset.Listing) (*taskqueue.Table, error) {
	indices, err := indexer.Index(ctx, found)
	if err != nil {
		return nil, err
	}
	chunks := 0
	for _, list := range indices {
		chunks += len(list)
	}
	table := taskqueue.NewTable(chunks)
	for i, f := range found.Files {
		if err := table.Add(fileOf(f), indices[i]); err != nil {
			return nil, err
		}
	}
	return table, nil
}

// maxNames bounds what one report can make the master look up; a glob is one name.
const maxNames = 100_000

// Register stores a task table and makes it the dataset for training.
func (m *Master) Register(ctx context.Context, table *taskqueue.Table, digest [32]byte) error {
	t, err := m.leading()
	if err != nil {
		return err
	}
	return m.register(ctx, t, m.trainingSet(), table, digest)
}

func (m *Master) register(ctx context.Context, t *term, spec taskqueue.SetSpec, table *taskqueue.Table, files [32]byte) error {
	defer m.reports.now.end()
	log := m.config.Log.WithField("tasks", table.Tasks())
	//guard:unused-parts-before-report
	if err := m.unused.remove(ctx, t, nil); err != nil {
		return fmt.Errorf("remove the parts of an earlier report: %w", err) // else each repeated report would leave more
	}
	parts, err := committer.TableParts(m.config.Store.Encode, table, 0)
	if err != nil {
		return fmt.Errorf("encode the task table: %w", err)
	}
	digest := committer.PartsDigest(spec.Online, [32]byte{}, parts)
	var random [8]byte
	if _, err := rand.Read(random[:]); err != nil {
		return fmt.Errorf("choose a report id: %w", err)
	}
	id := hex.EncodeToString(random[:])
	writes := make([]taskqueue.Write, len(parts))
	for i, p := range parts {
		writes[i] = taskqueue.Write{Key: m.config.Store.PartKey(id, i), Value: p}
	}
	//guard:refused-report-cleanup
	defer func() { m.removeUnused(ctx, t, spec.Name, table, writes) }()
	_, err = t.Do(ctx, committer.Request{
		Parts: &committer.Parts{Writes: writes, Progress: m.reports.now.step(log, storing)},
		Event: &taskqueue.Report{
			SetSpec: spec,
			Digest:  files, ReportID: id, Parts: len(parts), PartsDigest: digest, Table: table,
		},
	})
	return err
}

// removeUnused removes the parts of a table without a dataset of the job: its report was refused, or another
// report has registered the dataset. Parts that the term can no longer remove are harmless.
func (m *Master) removeUnused(ctx context.Context, t *term, name string, table *taskqueue.Table, parts []taskqueue.Write) {
	ctx = context.WithoutCancel(ctx) // whose report was refused may have gone away
	used := true
	if err := t.Read(ctx, func(q *taskqueue.Queue) {
		set, ok := q.Set(name)
		used = ok && q.Table(set) == table
	}); err != nil || used {
		return
	}
	if err := m.unused.remove(ctx, t, parts); err != nil {
		m.config.Log.WithError(err).WithField("parts", len(parts)).Warn("parts of a refused report stay in etcd until it takes writes again")
	}
}

// unusedParts is the component that removes the parts of refused reports.
type unusedParts struct {
	log *logrus.Entry

	mu   sync.Mutex // held while they are removed: one transaction takes the keys of one removal
	keys []string
}

// remove removes the parts, and the parts left by earlier failures. Parts that it cannot remove are kept for the next
// call.
func (u *unusedParts) remove(ctx context.Context, t component.Term, parts []taskqueue.Write) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, part := range parts {
		u.keys = append(u.keys, part.Key)
	}
	for len(u.keys) > 0 {
		some := u.keys[:min(removedAtOnce, len(u.keys))]
		writes := make([]taskqueue.Write, len(some))
		for i, key := range some {
			writes[i] = taskqueue.Write{Key: key, Delete: true}
		}
		if _, err := t.Submit(ctx, &taskqueue.StoreKeys{Writes: writes}); err != nil {
			return err
		}
		u.keys = u.keys[len(some):]
	}
	return nil
}

// Name implements [component.Component].
func (u *unusedParts) Name() string { return "unused parts" }

// Init implements [component.Component].
func (u *unusedParts) Init(context.Context) error { return nil }

// Prepare forgets the parts of earlier terms: another master may have removed them.
func (u *unusedParts) Prepare(context.Context, component.Term) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.keys = nil
	return nil
}

// Run removes what could not be removed before, until ctx ends.
func (u *unusedParts) Run(ctx context.Context, t component.Term) error {
	for ctx.Err() == nil {
		t.Clock().Sleep(ctx, removeEvery)
		//guard:unused-parts-retried
		if err := u.remove(ctx, t, nil); err != nil && ctx.Err() == nil {
			u.log.WithError(err).Debug("parts of a refused report are not removed yet")
		}
	}
	return context.Cause(ctx)
}

// removeEvery is how often the parts of refused reports are tried again.
const removeEvery = 10 * time.Second

// removedAtOnce is the number of keys of a refused report that one transaction deletes, in addition to the writes of
// its batch.
const removedAtOnce = 16

// entries are the files of a registered dataset.
func (t *term) entries(ctx context.Context, name string) ([]dataset.Entry, error) {
	var have []taskqueue.File
	err := t.Read(ctx, func(q *taskqueue.Queue) {
		if set, ok := q.Set(name); ok {
			have = q.Table(set).Files()
		}
	})
	return entriesOf(have), err
}

// difference is the difference between a listing and a registered dataset.
func (t *term) difference(ctx context.Context, name string, found dataset.Listing) error {
	registered, err := t.entries(ctx, name)
	if err != nil {
		return err
	}
	return difference(registered, found)
}
