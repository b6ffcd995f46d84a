package master

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"trainmaster/dataset"
	"trainmaster/master/committer"
	"trainmaster/master/component"
	"trainmaster/taskqueue"
)

// onlineDigest takes the place of the digest of files: an online dataset has none at its registration.
var onlineDigest = sha256.Sum256([]byte("online"))

// Appended is the result of an append.
type Appended struct {
	Files int // that were appended
	Known int // that were appended before, and are not appended again
	Tasks int // of the appended files
	Total int // tasks of the dataset
}

// registerOnline registers an online dataset without files.
func (m *Master) registerOnline(ctx context.Context, t *term, spec taskqueue.SetSpec) error {
	if err := m.reports.one.Acquire(ctx); err != nil {
		return err
	}
	defer m.reports.one.Release()
	switch digest, known, err := t.dataset(ctx, spec.Name); {
	case err != nil:
		return err
	case known && digest != onlineDigest:
		return fmt.Errorf("%w: the dataset %s of the job is not online", taskqueue.ErrOtherDataset, spec.Name)
	case known:
		return nil
	}
	return m.register(ctx, t, spec, taskqueue.NewTable(0), onlineDigest)
}

// AppendDataset appends the files that match names (paths and globs) to an online dataset: all of them or none. Files of the dataset are
// not appended again; a file that has changed since is an error.
func (m *Master) AppendDataset(ctx context.Context, name string, names []string) (a Appended, err error) {
	t, err := m.leading()
	if err != nil {
		return a, err
	}
	if len(names) > maxNames {
		return a, fmt.Errorf("%d names: expected at most %d; name the files by a glob", len(names), maxNames)
	}
	return readFiles(ctx, &m.reports, func(ctx context.Context) (Appended, error) { return m.appendNames(ctx, t, name, names) })
}

// appendNames is AppendDataset with the semaphore of the reports.
func (m *Master) appendNames(ctx context.Context, t *term, name string, names []string) (a Appended, err error) {
	set, err := t.growing(ctx, name)
	if err != nil && !errors.Is(err, taskqueue.ErrSetClosed) {
		return a, err
	}
	m.reports.source.Progress = nil
	found, err := m.reports.source.List(ctx, names)
	if err != nil {
		return a, fmt.Errorf("on the master's machine: %w", err)
	}
	return m.appendFiles(ctx, t, set, found.Files)
}

// CloseDataset closes an online dataset: its first pass ends when its tasks are done. The files that match its paths now are appended
// before. It returns the number of tasks.
func (m *Master) CloseDataset(ctx context.Context, name string) (tasks int, err error) {
	t, err := m.leading()
	if err != nil {
		return 0, err
	}
	for _, d := range m.config.Datasets {
		if d.Online && d.WithDefaults().Name == name {
			//guard:files-of-the-glob-before-close
			if _, err := m.appendNew(ctx, t, d, true); err != nil && !errors.Is(err, taskqueue.ErrSetClosed) {
				return 0, fmt.Errorf("append the files of %s before the close: %w", d.From, err)
			}
		}
	}
	a, err := t.Submit(ctx, &taskqueue.CloseSet{Name: name})
	if err != nil {
		return 0, err
	}
	err = t.Read(ctx, func(q *taskqueue.Queue) { tasks = q.Table(a.Set).Tasks() })
	return tasks, err
}

// growingSet is the committed state of an online dataset.
type growingSet struct {
	name   string
	table  *taskqueue.Table
	report string
	parts  int
	digest [32]byte
	closed error // not nil if the dataset is closed
}

// growing returns an online dataset. With [taskqueue.ErrSetClosed], it returns the closed dataset.
func (t *term) growing(ctx context.Context, name string) (s growingSet, err error) {
	s.name = name
	failed := t.Read(ctx, func(q *taskqueue.Queue) {
		var set int
		if set, err = q.Growing(name); err != nil && !errors.Is(err, taskqueue.ErrSetClosed) {
			return
		}
		s.table, s.closed = q.Table(set), err
		s.parts, s.report, s.digest = q.Parts(set)
	})
	return s, errors.Join(failed, err)
}

// appendFiles appends the files that the dataset does not have. The caller holds the semaphore of reports.
func (m *Master) appendFiles(ctx context.Context, t *term, s growingSet, files []dataset.File) (a Appended, err error) {
	have := map[string]taskqueue.File{}
	for _, f := range s.table.Files() {
		have[f.Path] = f
	}
	var fresh []dataset.File
	for _, f := range files {
		before, known := have[f.Path]
		//guard:appended-file-is-unchanged
		if now := fileOf(f); known && before != now {
			return a, fmt.Errorf("%s: %w: expected the file that was appended (%d bytes, modified %s), found %d bytes, modified %s: write new data to a new file",
				f.Path, dataset.ErrReplaced, before.Size, modified(before), now.Size, modified(now))
		}
		//guard:file-appended-once
		if !known {
			fresh = append(fresh, f)
		}
	}
	a.Known, a.Total = len(files)-len(fresh), s.table.Tasks()
	if len(fresh) == 0 {
		return a, nil
	}
	//guard:range-is-a-whole-online-dataset
	if err := onlyRange(s.name, append(slices.Collect(maps.Keys(have)), pathsOf(fresh)...)); err != nil {
		return a, err
	}
	if s.closed != nil {
		return a, s.closed
	}
	began, log := time.Now(), m.config.Log.WithFields(logrus.Fields{"dataset": s.name, "files": len(fresh)})
	defer m.reports.now.end()
	m.reports.indexer.Progress = m.reports.now.step(log, indexing)
	indices, err := m.reports.indexer.Index(ctx, dataset.Listing{Files: fresh})
	if err != nil {
		return a, err
	}
	table := s.table.Extend()
	for i, f := range fresh {
		if err := table.Add(fileOf(f), indices[i]); err != nil {
			return a, err
		}
	}
	if err := m.storeSegment(ctx, t, s, table, log); err != nil {
		return a, err
	}
	a.Files, a.Tasks, a.Total = len(fresh), table.Tasks()-s.table.Tasks(), table.Tasks()
	log.WithFields(logrus.Fields{"tasks": a.Tasks, "of": a.Total, "took": time.Since(began).Round(time.Millisecond).String()}).Info("files appended")
	return a, nil
}

// onlyRange returns an error if a range is not the only path of a dataset.
func onlyRange(name string, paths []string) error {
	if at := slices.IndexFunc(paths, dataset.IsRange); at >= 0 && len(paths) > 1 {
		return fmt.Errorf("%s: %w: expected it as the only path of the dataset %s, which would have %d paths: give it a dataset of its own", paths[at], dataset.ErrBadRange, name, len(paths))
	}
	return nil
}

func pathsOf(files []dataset.File) []string {
	paths := make([]string, len(files))
	for i, f := range files {
		paths[i] = f.Path
	}
	return paths
}

// storeSegment stores the parts of a segment, and then names them in the state.
func (m *Master) storeSegment(ctx context.Context, t *term, s growingSet, table *taskqueue.Table, log *logrus.Entry) error {
	//guard:earlier-parts-removed-before-an-append
	if err := m.unused.remove(ctx, t, nil); err != nil {
		return fmt.Errorf("remove the parts of an earlier append: %w", err) // their keys would be the keys of this segment
	}
	parts, err := committer.TableParts(m.config.Store.Encode, table, s.table.Chunks())
	if err != nil {
		return fmt.Errorf("encode the task table: %w", err)
	}
	writes := make([]taskqueue.Write, len(parts))
	for i, p := range parts {
		writes[i] = taskqueue.Write{Key: m.config.Store.PartKey(s.report, s.parts+i), Value: p}
	}
	_, err = t.Do(ctx, committer.Request{
		Parts: &committer.Parts{Writes: writes, Progress: m.reports.now.step(log, storing)},
		Event: &taskqueue.AppendSegment{Name: s.name, After: s.digest, Parts: len(parts), PartsDigest: committer.PartsDigest(true, s.digest, parts), Table: table},
	})
	//guard:refused-segment-cleanup
	if err != nil {
		m.removeSegment(ctx, t, s, writes)
	}
	return err
}

// removeSegment removes the parts of a refused append, unless the state names them.
func (m *Master) removeSegment(ctx context.Context, t *term, s growingSet, parts []taskqueue.Write) {
	ctx = context.WithoutCancel(ctx) // whose append was refused may have gone away
	named := true
	if err := t.Read(ctx, func(q *taskqueue.Queue) {
		if set, ok := q.Set(s.name); ok {
			n, _, _ := q.Parts(set)
			named = n != s.parts
		}
	}); err != nil || named {
		return
	}
	if err := m.unused.remove(ctx, t, parts); err != nil {
		m.config.Log.WithError(err).WithField("parts", len(parts)).Warn("parts of a refused append stay in etcd until it takes writes again")
	}
}

func fileOf(f dataset.File) taskqueue.File {
	return taskqueue.File{Path: f.Path, Size: f.Size, ModTime: f.ModTime.UnixNano(), ETag: f.ETag}
}

func modified(f taskqueue.File) string {
	if f.ETag != "" {
		return "with ETag " + f.ETag
	}
	return time.Unix(0, f.ModTime).UTC().Format(time.RFC3339Nano)
}

// appendNew appends the files of the paths of a dataset that it does not have. It reads no file that the dataset has. Files that cannot
// be used are an error; the other files are appended before, unless all is true.
func (m *Master) appendNew(ctx context.Context, t *term, d Dataset, all bool) (Appended, error) {
	return readFiles(ctx, &m.reports, func(ctx context.Context) (Appended, error) { return m.appendPaths(ctx, t, d, all) })
}

// appendPaths is appendNew with the semaphore of the reports.
func (m *Master) appendPaths(ctx context.Context, t *term, d Dataset, all bool) (a Appended, err error) {
	s, err := t.growing(ctx, d.WithDefaults().Name)
	if err != nil {
		return a, err
	}
	paths, err := m.newPaths(ctx, s, d.Paths)
	if err != nil || len(paths) == 0 {
		return a, err
	}
	m.reports.source.Progress = nil
	for {
		found, failed := m.reports.source.List(ctx, paths)
		if failed == nil {
			a, failed = m.appendFiles(ctx, t, s, found.Files)
		}
		err = errors.Join(err, failed)
		bad, isFiles := errors.AsType[*dataset.FilesError](failed)
		if !isFiles || all {
			return a, err
		}
		// The indexer remembers the indexes of the other files: the next attempt does not read them again.
		n, names := len(paths), map[string]bool{}
		for _, name := range bad.BadNames {
			names[name] = true
		}
		paths = slices.DeleteFunc(paths, func(path string) bool { return names[path] })
		if len(paths) == 0 || len(paths) == n {
			return a, err
		}
	}
}

// newPaths returns the files that match names and that the dataset does not have. A glob may match no file yet.
func (m *Master) newPaths(ctx context.Context, s growingSet, names []string) (paths []string, err error) {
	have := map[string]bool{}
	for _, f := range s.table.Files() {
		have[f.Path] = true
	}
	for _, name := range names {
		found, err := m.reports.source.Paths(ctx, []string{name})
		if err != nil && !errors.Is(err, dataset.ErrNoMatch) {
			return nil, err
		}
		for _, path := range found {
			if !have[path] {
				have[path], paths = true, append(paths, path)
			}
		}
	}
	return paths, nil
}

// watchEvery is the default of Config.DatasetWatch.
const watchEvery = 10 * time.Second

// watch appends new files of an online dataset until it is closed. It logs an error once.
func (d *datasets) watch(ctx context.Context, t component.Term, set Dataset) error {
	log, logged := d.config.Log.WithField("dataset", set.WithDefaults().Name), ""
	for ctx.Err() == nil {
		text := ""
		_, err := d.append(ctx, set)
		switch {
		case errors.Is(err, taskqueue.ErrSetClosed), errors.Is(err, taskqueue.ErrJobOver):
			<-ctx.Done()
		case errors.Is(err, component.ErrPanic):
			return err
		case err != nil && ctx.Err() == nil:
			if text = err.Error(); text != logged {
				log.WithError(err).Warn("new files not appended, retrying")
			}
		}
		logged = text
		t.Clock().Sleep(ctx, d.config.DatasetWatch)
	}
	return context.Cause(ctx)
}

// validateOnline returns an error if the job cannot have online datasets.
func (c Config) validateOnline() error {
	var names []string
	for _, d := range c.Datasets {
		if d.Online {
			names = append(names, d.WithDefaults().Name)
		}
	}
	//guard:deterministic-job-is-not-online
	if c.Deterministic && len(names) > 0 {
		return fmt.Errorf("deterministic: expected no online dataset, found %s: which trainer gets a task depends on the time of its append", strings.Join(names, ", "))
	}
	if c.DatasetWatch < 0 {
		return fmt.Errorf("dataset-watch: expected a time above 0, found %v", c.DatasetWatch)
	}
	return nil
}
