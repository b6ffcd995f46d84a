package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"trainmaster/cmd/internal/cli"
	"trainmaster/recordio"
)

// catRow is one record in the output of cat.
type catRow struct {
	Path   string  `json:"path"`
	Record int64   `json:"record"` // its number in the file, from 0
	Text   *string `json:"text,omitempty"`
	Base64 []byte  `json:"base64,omitempty"` // instead of text when the record is not UTF-8
}

func recordioCatCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cat FILE...",
		Short: "Print the records of files",
		Long: `Cat prints the records of files in order. As a table each record is its bytes and a line feed, which write reads back;
JSON and YAML also have the position of each record. Records that are not UTF-8 are base64.`,
		Example: `  master recordio cat words.rec
  master recordio cat -o json --limit 3 data/digits-00000-of-00004`,
		Args: cobra.MinimumNArgs(1),
	}
	format := cli.AddOutput(cmd)
	limit := cmd.Flags().Int64("limit", 0, "stop after that many `records` (default all)")
	cmd.RunE = func(cmd *cobra.Command, paths []string) error {
		if *limit < 0 {
			return cli.UsageErrorf("--limit is %d, expected 1 or more", *limit)
		}
		out := bufio.NewWriterSize(cmd.OutOrStdout(), 64<<10)
		printer := newRecordPrinter(out, *format)
		err := catFiles(cmd.Context(), paths, *limit, printer.record)
		return errors.Join(err, printer.end(), out.Flush())
	}
	return cmd
}

var errLimit = errors.New("the limit is reached")

func catFiles(ctx context.Context, paths []string, limit int64, show func(path string, n int64, record []byte) error) error {
	left := limit
	for _, path := range paths {
		err := eachFile(ctx, []string{path}, func(path string, f *recordio.File) error {
			n := int64(0)
			for record, err := range f.Records() {
				if err == nil && ctx.Err() != nil {
					err = context.Cause(ctx)
				}
				if err == nil {
					err = show(path, n, record)
				}
				if err != nil {
					return err
				}
				n++
				if left--; left == 0 {
					return errLimit
				}
			}
			return nil
		})
		if errors.Is(err, errLimit) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// recordPrinter writes records one by one: a file may be larger than memory.
type recordPrinter struct {
	out    *bufio.Writer
	format string
	rows   int
}

func newRecordPrinter(out *bufio.Writer, format string) *recordPrinter {
	return &recordPrinter{out: out, format: format}
}

func (p *recordPrinter) record(path string, n int64, record []byte) error {
	p.rows++
	row := catRow{Path: path, Record: n}
	if utf8.Valid(record) {
		text := string(record)
		row.Text = &text
	} else {
		row.Base64 = record
	}
	switch p.format {
	case "json":
		data, err := json.Marshal(row)
		if err != nil {
			return err
		}
		separator := ",\n  "
		if p.rows == 1 {
			separator = "[\n  "
		}
		return p.write([]byte(separator), data)
	case "yaml":
		data, err := yaml.Marshal([]catRow{row})
		if err != nil {
			return err
		}
		return p.write(data)
	default:
		return p.write(record, []byte("\n"))
	}
}

// end closes the list; one without rows is still a list.
func (p *recordPrinter) end() error {
	switch {
	case p.format == "json" && p.rows == 0, p.format == "yaml" && p.rows == 0:
		return p.write([]byte("[]\n"))
	case p.format == "json":
		return p.write([]byte("\n]\n"))
	}
	return nil
}

func (p *recordPrinter) write(parts ...[]byte) error {
	for _, part := range parts {
		if _, err := p.out.Write(part); err != nil {
			return err
		}
	}
	return nil
}
