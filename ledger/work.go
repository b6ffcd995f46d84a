package ledger

import (
	"context"
	"fmt"
	"time"

	"trainmaster/taskqueue"
)

// work is the sealing of one term.
type work struct {
	*Sealer
	Config
	lock    Lock
	archive Archive
	disk    watched // the archive, if it is a directory
	id      string

	loaded   bool // the fields below match etcd
	head     Head
	revision int64 // of the head
	files    []sealedFile
	books    *taskqueue.Verifier // has the ledger through the head; for outlines
	swept    bool                // since this term sealed something
	sealedAt uint64              // sealed part of Progress.Bytes
}

// round does all due work.
func (w *work) round(ctx context.Context, now Progress) error {
	if !w.loaded {
		if err := w.load(ctx); err != nil {
			return err
		}
		w.loaded = true
	}
	for now.Commit > w.head.through() && (now.Commit-w.head.through() >= w.Every || now.Bytes-w.sealedAt >= uint64(w.Bytes)) {
		size, err := w.seal(ctx, now.Commit)
		if err != nil {
			return err
		}
		w.sealedAt = min(w.sealedAt+uint64(size), now.Bytes)
		if !w.swept {
			if err := w.sweep(ctx); err != nil {
				return err
			}
			w.swept = true
		}
	}
	return w.retain(ctx)
}

// load reads what the term before left, and finishes what it had begun.
func (w *work) load(ctx context.Context) error {
	var begin Begin
	var err error
	if w.head, w.revision, begin, err = readHead(ctx, w.Store); err != nil {
		return err
	}
	if w.books, err = taskqueue.ResumeVerifier(begin.Outline); err != nil {
		return fmt.Errorf("%s: %w", BeginKey, err)
	}
	w.swept, w.files = false, nil
	if err := w.sees(w.head, begin.Replaced, w.id, w.disk); err != nil {
		return err
	}
	if !w.head.sealed() {
		return w.claim(ctx)
	}
	if w.files, err = chain(ctx, w.archive, w.head, w.head.From); err != nil {
		return err
	}
	if err := w.replay(ctx); err != nil {
		return err
	}
	w.report()
	if err := w.trim(ctx, 1); err != nil {
		return err
	}
	return w.sweep(ctx)
}

// claim creates the directory of the job. The directory of a replaced job is renamed and keeps its files.
func (w *work) claim(ctx context.Context) error {
	if w.disk.Dir == "" {
		return nil
	}
	id, err := w.disk.ID()
	if err != nil || id == w.id {
		return err
	}
	if id != "" {
		aside, err := w.disk.setAside(id)
		if err != nil {
			return err
		}
		w.Log.WithField("directory", aside).WithField("job_id", id).Info("ledger of the replaced job moved")
	}
	return w.disk.Claim(ctx, w.id)
}

// replay brings the books to the end of the newest file.
func (w *work) replay(ctx context.Context) error {
	newest := w.files[len(w.files)-1]
	entries, err := newest.entries(ctx, w.archive, w.head.Digest)
	if err != nil {
		return err
	}
	if w.books, err = taskqueue.ResumeVerifier(newest.Outline); err != nil {
		return fmt.Errorf("%s: %w", w.archive.Path(newest.name), err)
	}
	for e, err := range entries {
		if err != nil {
			return err
		}
		if err := w.books.Add(e.Commit, e.Events); err != nil {
			return fmt.Errorf("%s: %w", w.archive.Path(newest.name), err)
		}
	}
	return nil
}

// seal moves the next commits, up to the last commit that was made, into a file. It returns the bytes of their events.
func (w *work) seal(ctx context.Context, made uint64) (size int, err error) {
	first := w.head.through() + 1
	entries, last, size, err := w.collect(ctx, first, min(made, w.head.through()+w.Every))
	if err != nil {
		return 0, err
	}
	h := Header{Job: w.Job, ID: w.id, First: first, Last: last, Newest: newest(entries), Before: w.head.File, Outline: w.books.Outline()}
	if h.Newest == 0 && len(w.files) > 0 {
		h.Newest = w.files[len(w.files)-1].Newest
	}
	for _, e := range entries {
		if err := w.books.Add(e.Commit, e.Events); err != nil {
			return 0, fmt.Errorf("ledger entries in etcd cannot be sealed: %w", err)
		}
	}
	file, err := Encode(h, entries)
	if err != nil {
		return 0, err
	}
	digest := digestOf(file)
	sealed := sealedFile{name: fileName(first, last, digest), Header: h, size: int64(len(file))}
	if err := w.archive.Write(ctx, sealed.name, file); err != nil {
		return 0, err
	}
	next := w.head
	next.ID, next.Directory, next.Through, next.File, next.Digest = w.id, w.directory(), last, sealed.name, digest
	next.Files, next.Bytes = next.Files+1, next.Bytes+sealed.size
	//guard:ledger-head-before-delete
	if err := w.replace(ctx, next); err != nil {
		return 0, err
	}
	w.files = append(w.files, sealed)
	if err := w.points.Reach("head replaced"); err != nil {
		return 0, err
	}
	return size, w.trim(ctx, first)
}

// collect reads the entries in etcd from first to last, or until they are enough for a file. Then the last commit is the
// commit of the last entry.
func (w *work) collect(ctx context.Context, first, last uint64) (entries []Entry, through uint64, size int, err error) {
	for from := first; from <= last; from += pageCommits {
		page, _, revision, err := w.Store.LedgerEntries(ctx, from, min(last, from+pageCommits-1), pageCommits)
		if err != nil {
			return nil, 0, 0, fmt.Errorf("read the ledger from commit %d: %w", from, err)
		}
		if revision != w.revision {
			return nil, 0, 0, fmt.Errorf("%s: expected an unchanged head, found revision %d", HeadKey, revision)
		}
		for _, e := range page {
			entries = append(entries, e)
			if size += len(e.Events); size >= w.Bytes {
				return entries, e.Commit, size, nil
			}
		}
	}
	return entries, last, size, nil
}

// newest returns the time of the last entry that has a time.
func newest(entries []Entry) int64 {
	for i := len(entries) - 1; i >= 0; i-- {
		for ev, err := range taskqueue.LedgerEvents(entries[i].Events) {
			if err == nil && ev.Kind == taskqueue.EventStamped {
				return ev.At
			}
			break // a stamp is the first
		}
	}
	return 0
}

func (w *work) replace(ctx context.Context, next Head) error {
	value, err := next.encode()
	if err != nil {
		return err
	}
	revision, err := w.lock.ReplaceFenced(ctx, HeadKey, w.revision, value)
	if err != nil {
		return fmt.Errorf("write the head of the ledger: %w", err)
	}
	w.head, w.revision = next, revision
	w.report()
	return nil
}

// trim deletes sealed entries that are still in etcd, a batch at a time, to keep the delay of commits short.
func (w *work) trim(ctx context.Context, from uint64) error {
	for first := from; first <= w.head.Through; {
		left, _, _, err := w.Store.LedgerEntries(ctx, first, w.head.Through, 1)
		if err != nil {
			return fmt.Errorf("read the ledger from commit %d: %w", first, err)
		}
		if len(left) == 0 {
			return nil
		}
		first = left[0].Commit
		//guard:delete-sealed-entries-only
		last := min(first+deleteBatch-1, w.head.Through)
		if err := w.lock.DeleteLedgerEntries(ctx, first, last); err != nil {
			return fmt.Errorf("delete the sealed ledger from commit %d to %d: %w", first, last, err)
		}
		if err := w.points.Reach("keys deleted"); err != nil {
			return err
		}
		first = last + 1
	}
	return nil
}

// retain removes the oldest files as Keep says: first the head forgets them, then they go.
func (w *work) retain(ctx context.Context) error {
	if w.Keep.All || len(w.files) == 0 {
		return nil
	}
	tooOld := w.tooOld()
	next, n := w.head, 0
	for n < len(w.files)-1 && (w.Keep.Bytes > 0 && next.Bytes > w.Keep.Bytes || n < tooOld) {
		size, err := w.size(ctx, n)
		if err != nil {
			return err
		}
		next.Bytes -= size
		next.Files--
		n++
	}
	if n == 0 {
		return nil
	}
	next.From = w.files[n].First
	if err := w.replace(ctx, next); err != nil {
		return err
	}
	names := make([]string, n)
	for i := range names {
		names[i] = w.files[i].name
	}
	w.files = append([]sealedFile(nil), w.files[n:]...)
	w.Log.WithField("from_commit", next.From).WithField("files", n).Info("old ledger files deleted")
	if err := w.points.Reach("files forgotten"); err != nil {
		return err
	}
	return w.archive.Remove(ctx, names)
}

// tooOld returns the number of files that are older than Keep.Age. The age counts from the newest entry, so it does not depend on the
// clock of this machine. The times of entries come from the clocks of leaders. A forward step of a clock between two files counts as at
// most three quarters of Age (see longestGap). A backward step counts as 0.
func (w *work) tooOld() int {
	if w.Keep.Age == 0 {
		return 0
	}
	//guard:ledger-gap-limit
	longest := min(max(w.Keep.Age/8, longestGap), w.Keep.Age/4*3)
	age := time.Duration(0)
	for i := len(w.files) - 1; i > 0; i-- {
		gap := max(w.files[i].Newest-w.files[i-1].Newest, 0) // ms
		if gap < longest.Milliseconds() {
			age += time.Duration(gap) * time.Millisecond
		} else {
			//guard:ledger-age-limit
			age += longest
		}
		if age > w.Keep.Age {
			return i
		}
	}
	return 0
}

// longestGap is the least bound of the time between two files that counts. It is an eighth of Keep.Age
// if that is more, and never more than three quarters of Keep.Age: one step of a clock alone makes no file too old.
const longestGap = time.Hour

// size returns the size of a file. The size of a file of an earlier term is read when it is needed.
func (w *work) size(ctx context.Context, i int) (int64, error) {
	f := &w.files[i]
	if f.size == 0 {
		file, err := w.archive.Read(ctx, f.name, 1<<40)
		if err != nil {
			return 0, fmt.Errorf("read sealed file %s: %w", w.archive.Path(f.name), err)
		}
		f.size = int64(len(file))
	}
	return f.size, nil
}

// sweep removes files that no head leads to. A file that begins after the head's through may be written by another leader and
// become part of the ledger. An earlier file can never become part of it, whichever process wrote it, and an old head proves
// this of fewer files. sweep runs when a term begins, and again after it first sealed a file: then a file that the previous
// term was about to seal is behind the head.
func (w *work) sweep(ctx context.Context) error {
	names, err := w.archive.List(ctx)
	if err != nil {
		return err
	}
	part := map[string]bool{}
	for _, f := range w.files {
		part[f.name] = true
	}
	var stale []string
	for _, name := range names {
		//guard:sweep-keeps-ledger-files
		if first, ok := firstOf(name); ok && first <= w.head.Through && !part[name] {
			stale = append(stale, name)
		}
	}
	return w.archive.Remove(ctx, stale)
}

func (w *work) report() {
	w.through.Store(int64(w.head.Through))
	w.Sealer.bytes.Store(w.head.Bytes)
}
