package tool

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"trainmaster/recordio"
)

const MostShards = 99_999 // what five digits in a name can number

// Written describes written files.
type Written struct {
	Path    string   `json:"path"`
	Records int64    `json:"records"`
	Chunks  int      `json:"chunks"`
	Bytes   int64    `json:"bytes"`
	Shards  []string `json:"shards,omitempty"` // paths, with --shards
}

// Output describes the files that WriteFiles makes.
type Output struct {
	Path    string
	Shards  int       // 0: one file, path
	Inputs  []string  // none: stdin
	PerFile bool      // each input is a record; else each line is
	Stdin   io.Reader // its lines are the records if there are no inputs
	Force   bool      // replace existing files
	Options recordio.WriterOptions
}

// WriteFiles writes records to one file or to shards. No file is visible to other processes until all are complete.
func WriteFiles(ctx context.Context, o Output) (Written, error) {
	w := recordWriter{result: Written{Path: o.Path}}
	if err := w.create(o.Path, o.Shards, o.Force, o.Options); err != nil {
		return Written{}, err
	}
	defer w.discard()
	var err error
	if o.PerFile {
		err = w.files(ctx, o.Inputs)
	} else {
		err = w.lines(ctx, o.Stdin, o.Inputs)
	}
	if err == nil {
		err = w.publish()
	}
	return w.result, err
}

// recordWriter distributes records to files, one after another. No file is visible to other processes until all are complete.
type recordWriter struct {
	parts  []*recordPart
	result Written
}

// recordPart is one of the files.
type recordPart struct {
	wholeFile
	out *recordio.Writer
}

// counting counts the chunks, each of which is one Write, and their bytes.
func (w *recordWriter) counting(file *os.File) io.Writer {
	return writerFunc(func(p []byte) (int, error) {
		w.result.Chunks++
		n, err := file.Write(p)
		w.result.Bytes += int64(n)
		return n, err
	})
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// create begins the files of a path, or its shards.
func (w *recordWriter) create(path string, shards int, force bool, options recordio.WriterOptions) error {
	paths := []string{path}
	if shards > 0 {
		paths = nil
		for i := range shards {
			paths = append(paths, fmt.Sprintf("%s-%05d-of-%05d", path, i, shards))
		}
		w.result.Shards = paths
		if others, err := filepath.Glob(path + "-[0-9]*-of-[0-9]*"); err == nil {
			for _, other := range others {
				if !force || !slices.Contains(paths, other) {
					return fmt.Errorf("%s exists: expected no shards of %s; --force replaces as many shards, remove others", recordio.DisplayName(other), path)
				}
			}
		}
	}
	for _, path := range paths {
		info, err := os.Lstat(path)
		if err == nil && info.IsDir() {
			return fmt.Errorf("write %s: expected the name of a file, found a directory", recordio.DisplayName(path))
		}
		if err == nil && !force {
			return fmt.Errorf("%s exists; --force replaces it", recordio.DisplayName(path))
		}
	}
	for _, path := range paths {
		file, err := createWhole(path)
		if err != nil {
			w.discard()
			return err
		}
		w.parts = append(w.parts, &recordPart{file, recordio.NewWriter(w.counting(file.File), options)})
	}
	return nil
}

// SpareFiles is the number of open files that remain for the rest of the program.
const SpareFiles = 32

// CheckOpenFiles returns an error if there are more shards than this process can have open: records go to all of them alternately.
func CheckOpenFiles(shards int) error {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return nil //nolint:nilerr // opening the files then returns the error
	}
	if most := limit.Cur; uint64(shards)+SpareFiles > most && shards > 1 {
		return fmt.Errorf("expected at most %d, since all are open at a time and this process may open %d files: use fewer, or raise the limit with ulimit -n",
			max(most, SpareFiles+1)-SpareFiles, most)
	}
	return nil
}

// write adds a record to the next file.
func (w *recordWriter) write(record []byte) error {
	p := w.parts[w.result.Records%int64(len(w.parts))]
	if err := p.out.Write(record); err != nil {
		return fmt.Errorf("write %s: %w", recordio.DisplayName(p.path), err)
	}
	w.result.Records++
	return nil
}

// publish completes the files and gives them their names.
func (w *recordWriter) publish() error {
	if w.result.Records < int64(len(w.parts)) {
		if w.result.Records == 0 {
			return errors.New("the input has no lines, and a file without records is not valid")
		}
		return fmt.Errorf("expected at least one record for each of %d shards, found %d", len(w.parts), w.result.Records)
	}
	for _, p := range w.parts {
		if err := errors.Join(p.out.Close(), p.complete()); err != nil {
			return fmt.Errorf("write %s: %w", recordio.DisplayName(p.path), err)
		}
	}
	for _, p := range w.parts {
		if err := p.publish(); err != nil {
			return err
		}
	}
	return nil
}

// discard removes the files that were not published.
func (w *recordWriter) discard() {
	for _, p := range w.parts {
		p.discard()
	}
}

// files writes each input as a record.
func (w *recordWriter) files(ctx context.Context, inputs []string) error {
	for _, path := range inputs {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		file, err := openInput(ctx, path)
		if err != nil {
			return err
		}
		record, err := io.ReadAll(io.LimitReader(file, recordio.DefaultMaxChunkBytes+1))
		if err := errors.Join(err, file.Close()); err != nil {
			return err
		}
		if err := w.write(record); err != nil {
			return fmt.Errorf("%s: %w", recordio.DisplayName(path), err)
		}
	}
	return nil
}

// lines writes the lines of the inputs, or of stdin if there are none.
func (w *recordWriter) lines(ctx context.Context, stdin io.Reader, inputs []string) error {
	if len(inputs) == 0 {
		return w.copyLines(ctx, "standard input", &input{ctx: ctx, from: stdin})
	}
	for _, path := range inputs {
		file, err := openInput(ctx, path)
		if err != nil {
			return err
		}
		if err := errors.Join(w.copyLines(ctx, path, file), file.Close()); err != nil {
			return err
		}
	}
	return nil
}

func (w *recordWriter) copyLines(ctx context.Context, name string, in io.Reader) error {
	lines := bufio.NewScanner(in)
	lines.Buffer(make([]byte, 64<<10), recordio.DefaultMaxChunkBytes)
	lines.Split(splitLines)
	n := 0
	for lines.Scan() {
		n++
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := w.write(lines.Bytes()); err != nil {
			return fmt.Errorf("%s: line %d: %w", name, n, err)
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("%s: line %d: %w", name, n+1, err)
	}
	return nil
}

// splitLines is bufio.ScanLines, but keeps carriage returns as part of a record.
func splitLines(data []byte, atEOF bool) (advance int, token []byte, err error) {
	advance, token, err = bufio.ScanLines(data, atEOF)
	if token == nil {
		return advance, token, err
	}
	if end := advance - 1; end >= 0 && data[end] == '\n' {
		return advance, data[:end], err
	}
	return advance, data[:advance], err
}

// wholeFile is a file that others see only when it is complete and synced.
type wholeFile struct {
	*os.File
	path string
}

// createWhole begins a file under a temporary name.
func createWhole(path string) (wholeFile, error) {
	file, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".tmp-*")
	if err != nil {
		if cause, ok := errors.AsType[*os.PathError](err); ok {
			err = cause.Err // without the temporary name
		}
		return wholeFile{}, fmt.Errorf("write %s: create a file in %s: %w", recordio.DisplayName(path), recordio.DisplayName(filepath.Dir(path)), err)
	}
	return wholeFile{file, path}, nil
}

// complete syncs and closes the file.
func (f wholeFile) complete() error {
	return errors.Join(f.Chmod(0o644), f.Sync(), f.Close())
}

// publish gives the file its name.
func (f wholeFile) publish() error {
	if err := os.Rename(f.Name(), f.path); err != nil {
		return err
	}
	folder, err := os.Open(filepath.Dir(f.path))
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}

// discard removes the file if it was not published.
func (f wholeFile) discard() {
	f.Close()
	os.Remove(f.Name())
}

// writeWhole makes a file that others see only when it is complete and synced.
func writeWhole(path string, fill func(*os.File) error) error {
	file, err := createWhole(path)
	if err != nil {
		return err
	}
	defer file.discard() // without effect after the rename
	if err := errors.Join(fill(file.File), file.complete()); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return file.publish()
}
