package ledger

import (
	"context"
	"fmt"
	"iter"

	"trainmaster/taskqueue"
)

// Reader reads the ledger of a job, sealed or not, with or without a running leader.
type Reader struct {
	store   Store
	config  Config
	head    Head
	outline taskqueue.Outline
}

// Open locates the ledger. dir is the parent directory that a master was started with, "" for the directory that the master
// itself named.
func Open(ctx context.Context, store Store, job, dir string) (*Reader, error) {
	r := &Reader{store: store, config: Config{Job: job, Dir: dir}.withDefaults()}
	head, _, begin, err := readHead(ctx, store)
	if r.head, r.outline = head, begin.Outline; err != nil || !head.sealed() {
		return r, err
	}
	archive, err := r.archive(r.head)
	if err != nil {
		return nil, err
	}
	files, err := chain(ctx, archive, r.head, r.head.From)
	if err != nil {
		return nil, r.kept(ctx, err)
	}
	r.outline = files[0].Outline
	return r, nil
}

// Outline returns the outline of the part of the ledger that was removed; the zero Outline if all is kept.
func (r *Reader) Outline() taskqueue.Outline { return r.outline }

// archive is where a head's files are.
func (r *Reader) archive(head Head) (Archive, error) {
	if head.Directory == "" {
		return parts{store: r.store}, nil
	}
	dir, from := r.config.directory(), "--ledger-dir"
	if dir == "" {
		dir, from = head.Directory, "its master"
	}
	directory := Directory{Dir: dir}
	id, err := directory.ID()
	if err != nil {
		return nil, err
	}
	if id != head.ID {
		if id == "" {
			id = "none"
		}
		return nil, fmt.Errorf("%w: %s names %s: expected the ledger of job id %[5]s, found %[4]s: set --ledger-dir to the directory of the ledger", ErrElsewhere, from, dir, id, head.ID)
	}
	return directory, nil
}

// kept explains an error of reading files: retention may have removed them during the read.
func (r *Reader) kept(ctx context.Context, err error) error {
	value, _, valueErr := r.store.Value(ctx, HeadKey)
	if now, headErr := parseHead(value); valueErr == nil && headErr == nil && now.From > r.head.From {
		return fmt.Errorf("the ledger before commit %d was removed during the read, because of --ledger-keep: run this again (%w)", now.From, err)
	}
	return err
}

// Entries yields the ledger in the order of commits, from the first that is kept to the given
// one, each exactly once, also while it is being sealed.
//
//	         ┌──▶ a page from etcd at one revision, with the head ──▶ yield ──┐
//	next ────┤    the head's through is next or later                         ├──▶ next
//	         └──▶ the files from next to the head's through ────────▶ yield ──┘
func (r *Reader) Entries(ctx context.Context, last uint64) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		for next := r.head.From; next <= last; {
			end := min(last, next+pageCommits-1)
			page, value, _, err := r.store.LedgerEntries(ctx, next, end, pageCommits)
			if err != nil {
				yield(Entry{}, fmt.Errorf("read the ledger from commit %d: %w", next, err))
				return
			}
			head, err := parseHead(value)
			if err != nil {
				yield(Entry{}, err)
				return
			}
			if head.Through >= next { // the page may have lost what is sealed
				if !r.sealed(ctx, head, next, last, yield) {
					return
				}
				next = head.Through + 1
				continue
			}
			for _, e := range page {
				if !yield(e, nil) {
					return
				}
			}
			next = end + 1
		}
	}
}

// sealed yields what is in files from commit next to last, or to the end of the files.
func (r *Reader) sealed(ctx context.Context, head Head, next, last uint64, yield func(Entry, error) bool) (more bool) {
	archive, err := r.archive(head)
	var files []sealedFile
	if err == nil {
		files, err = chain(ctx, archive, head, next)
	}
	if err == nil && files[0].First > next {
		err = fmt.Errorf("ledger: expected commits %d to %d, found none", next, files[0].First-1)
	}
	if err != nil {
		yield(Entry{}, r.kept(ctx, err))
		return false
	}
	for i, f := range files {
		digest := ""
		if i == len(files)-1 {
			digest = head.Digest
		}
		entries, err := f.entries(ctx, archive, digest)
		if err != nil {
			yield(Entry{}, r.kept(ctx, err))
			return false
		}
		for e, err := range entries {
			switch {
			case err != nil:
				yield(Entry{}, err)
				return false
			case e.Commit > last:
				return false
			case e.Commit < next:
			case !yield(e, nil):
				return false
			}
		}
	}
	return true
}
