package tool

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"unicode/utf8"

	"sigs.k8s.io/yaml"

	"trainmaster/dataset"
)

// CatRow is one record in the output of cat.
type CatRow struct {
	Path   string  `json:"path"`
	Record int64   `json:"record"` // its number in the file, from 0
	Text   *string `json:"text,omitempty"`
	Base64 []byte  `json:"base64,omitempty"` // instead of text if the bytes are not UTF-8
}

var errLimit = errors.New("the limit is reached")

// Cat calls show for the records of files in order, at most limit of them (0 = all).
func Cat(ctx context.Context, paths []string, limit int64, show func(path string, n int64, record []byte) error) error {
	paths, err := expand(ctx, paths)
	if err != nil {
		return err
	}
	left := limit
	for _, path := range paths {
		err := eachFile(ctx, []string{path}, func(path string, f *dataset.Reader) error {
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

// Printer writes records one by one: a file may be larger than memory.
type Printer struct {
	out    *bufio.Writer
	format string
	rows   int
}

// NewPrinter returns a printer with the format table, json or yaml.
func NewPrinter(out *bufio.Writer, format string) *Printer {
	return &Printer{out: out, format: format}
}

// Record prints record n of a file.
func (p *Printer) Record(path string, n int64, record []byte) error {
	p.rows++
	row := CatRow{Path: path, Record: n}
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
		data, err := yaml.Marshal([]CatRow{row})
		if err != nil {
			return err
		}
		return p.write(data)
	default:
		return p.write(record, []byte("\n"))
	}
}

// End closes the list of JSON or YAML, which may be empty.
func (p *Printer) End() error {
	switch {
	case p.format == "json" && p.rows == 0, p.format == "yaml" && p.rows == 0:
		return p.write([]byte("[]\n"))
	case p.format == "json":
		return p.write([]byte("\n]\n"))
	}
	return nil
}

func (p *Printer) write(parts ...[]byte) error {
	for _, part := range parts {
		if _, err := p.out.Write(part); err != nil {
			return err
		}
	}
	return nil
}
