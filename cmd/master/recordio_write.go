package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"trainmaster/recordio"
)

// written is what write says when it is done.
type written struct {
	Path    string `json:"path"`
	Records int64  `json:"records"`
	Bytes   int64  `json:"bytes"`
}

func recordioWriteCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "write FILE [INPUT...]",
		Short: "Write a file with a record for each line of text",
		Long: `Write makes a RecordIO file whose records are the lines of the inputs, without their line feeds; without inputs, of the
standard input. The file appears when it is complete, or not at all; one that exists is kept unless --force is given.`,
		Example: `  seq 1000 | master recordio write numbers.rec
  master recordio write --compression snappy --records-per-chunk 100 words.rec /usr/share/dict/words`,
		Args: cobra.MinimumNArgs(1),
	}
	chunks := addChunkFlags(cmd)
	chunks.layout = addChoice(cmd, "layout", "", "layout of the chunks' headers", recordio.First.String(), recordio.Second.String())
	force := cmd.Flags().Bool("force", false, "replace the file if it exists")
	format := addOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		options, err := chunks.options()
		if err != nil {
			return err
		}
		path, inputs := args[0], args[1:]
		if _, err := os.Lstat(path); err == nil && !*force {
			return fmt.Errorf("%s exists; --force replaces it", path)
		}
		result := written{Path: path}
		err = writeWhole(path, func(file *os.File) error {
			w := recordio.NewWriter(file, options)
			var err error
			if result.Records, err = writeLines(cmd.Context(), w, cmd.InOrStdin(), inputs); err != nil {
				return err
			}
			if result.Records == 0 {
				return errors.New("the input has no lines, and a file without records is not valid")
			}
			if err := w.Close(); err != nil {
				return err
			}
			result.Bytes, err = file.Seek(0, io.SeekCurrent)
			return err
		})
		if err != nil {
			return err
		}
		return render(cmd.OutOrStdout(), *format, result, func(w io.Writer) {
			fmt.Fprintf(w, "PATH\tRECORDS\tBYTES\n%s\t%d\t%d\n", result.Path, result.Records, result.Bytes)
		})
	}
	return cmd
}

// writeLines writes the lines of the inputs, or of stdin if there are none.
func writeLines(ctx context.Context, w *recordio.Writer, stdin io.Reader, inputs []string) (n int64, err error) {
	if len(inputs) == 0 {
		return copyLines(ctx, w, "standard input", stdin)
	}
	for _, path := range inputs {
		file, err := os.Open(path)
		if err != nil {
			return n, err
		}
		lines, err := copyLines(ctx, w, path, file)
		n += lines
		if err := errors.Join(err, file.Close()); err != nil {
			return n, err
		}
	}
	return n, nil
}

func copyLines(ctx context.Context, w *recordio.Writer, name string, in io.Reader) (n int64, err error) {
	lines := bufio.NewScanner(in)
	lines.Buffer(make([]byte, 64<<10), recordio.DefaultMaxChunkBytes)
	lines.Split(splitLines)
	for lines.Scan() {
		if ctx.Err() != nil {
			return n, context.Cause(ctx)
		}
		if err := w.Write(lines.Bytes()); err != nil {
			return n, fmt.Errorf("%s: line %d: %w", name, n+1, err)
		}
		n++
	}
	if err := lines.Err(); err != nil {
		return n, fmt.Errorf("%s: line %d: %w", name, n+1, err)
	}
	return n, nil
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

// writeWhole makes a file that others see only when it is complete and synced.
func writeWhole(path string, fill func(*os.File) error) error {
	file, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".tmp-*")
	if err != nil {
		return err
	}
	defer os.Remove(file.Name()) // without effect after the rename
	err = fill(file)
	if err == nil {
		err = errors.Join(file.Chmod(0o644), file.Sync())
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := os.Rename(file.Name(), path); err != nil {
		return err
	}
	folder, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}
