package main

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

	"github.com/spf13/cobra"

	"trainmaster/cmd/internal/cli"
	"trainmaster/recordio"
)

// written is what write says when it is done.
type written struct {
	Path    string   `json:"path"`
	Records int64    `json:"records"`
	Chunks  int      `json:"chunks"`
	Bytes   int64    `json:"bytes"`
	Shards  []string `json:"shards,omitempty"` // paths, with --shards
}

func recordioWriteCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "write FILE [INPUT...]",
		Short: "Write records from lines or files",
		Long: `Write makes a RecordIO file whose records are the lines of the inputs, without their line feeds;
without inputs, of the standard input. With --per-file each input is one record, whole. With --shards
the records are distributed to FILE-00000-of-00004 and so on, one after another. A file appears only
when it is complete. Existing files are kept unless --force is given.`,
		Example: `  seq 1000 | master recordio write numbers.rec
  master recordio write --compression snappy --records-per-chunk 100 words.rec /usr/share/dict/words
  # each picture is a record; about 4 tasks for each of 3 trainers
  master recordio write --per-file --shards 4 --records-per-chunk 20 data/pictures pictures/*.png`,
		Args: cobra.MinimumNArgs(1),
	}
	chunks := addChunkFlags(cmd, "no limit")
	chunks.layout = cli.AddChoice(cmd, "layout", "", "layout of the chunks' headers", recordio.First.String(), recordio.Second.String())
	perFile := cmd.Flags().Bool("per-file", false, "make one record of each input")
	shards := cmd.Flags().Int("shards", 0, "`number` of files FILE-00000-of-... (0 = one file FILE)")
	force := cmd.Flags().Bool("force", false, "replace the file if it exists")
	format := cli.AddOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		options, err := chunks.options()
		if err != nil {
			return err
		}
		path, inputs := args[0], args[1:]
		switch {
		case *shards < 0 || *shards > mostShards:
			return cli.SettingErrorf(cmd, "shards", "expected 0 (one file) to %d", mostShards)
		case *perFile && len(inputs) == 0:
			return cli.UsageErrorf("--per-file: expected the files to write after %s, found none", path)
		}
		w := recordWriter{result: written{Path: path}}
		if err := w.create(path, *shards, *force, options); err != nil {
			return err
		}
		defer w.discard()
		if *perFile {
			err = w.files(cmd.Context(), inputs)
		} else {
			err = w.lines(cmd.Context(), cmd.InOrStdin(), inputs)
		}
		if err == nil {
			err = w.publish()
		}
		if err != nil {
			return err
		}
		warnOfFewTasks(cmd.ErrOrStderr(), w.result.Chunks, int(w.result.Records))
		return cli.Render(cmd.OutOrStdout(), *format, w.result, func(out io.Writer) {
			fmt.Fprintf(out, "PATH\tRECORDS\tCHUNKS\tBYTES\n%s\t%d\t%d\t%d\n", recordio.DisplayName(path), w.result.Records, w.result.Chunks, w.result.Bytes)
		})
	}
	return cmd
}

// recordWriter distributes records to files, one after another. No file is visible to other processes until all are complete.
type recordWriter struct {
	parts  []*recordPart
	result written
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
	if err := checkOpenFiles(len(paths)); err != nil {
		return err
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

// spareFiles is how many open files are left to the rest of the program.
const spareFiles = 32

// checkOpenFiles refuses more shards than this process may have open at a time: records go to all of them alternately.
func checkOpenFiles(shards int) error {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return nil //nolint:nilerr // opening the files then returns the error
	}
	if most := limit.Cur; uint64(shards)+spareFiles > most && shards > 1 {
		return cli.UsageErrorf("--shards %d: expected at most %d, since all are open at a time and this process may open %d files: use fewer, or raise the limit with ulimit -n",
			shards, max(most, spareFiles+1)-spareFiles, most)
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

// splitLines is bufio.ScanLines, but keeps carriage returns: they are part of the record.
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
