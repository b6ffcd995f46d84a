package convert

import (
	"bufio"
	"bytes"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/klauspost/compress/gzip"
)

// The values of Options.Heading.
const (
	HeadingAuto = "auto" // line 1 is a heading if it has no number, or, in a table of categories, no number for a label
	HeadingYes  = "yes"
	HeadingNo   = "no"
)

// rowReader reads the rows of a table in CSV or JSON lines.
type rowReader interface {
	// Read returns the next row, which is valid until the next call. A row of CSV with another size comes with csv.ErrFieldCount.
	Read() ([]string, error)
	FieldPos(column int) (line, at int)
}

// table reads the rows of a table: it skips a heading and separates the label from the other columns.
type table struct {
	rows    rowReader
	lines   bool // rows are JSON lines, whose keys are the heading
	options *Options
	looks   func(row []string, label int) bool // like a heading

	columns []string // the heading without the label; nil: no heading
	named   string   // the label's column in the heading
	width   int      // columns of the table
	label   int      // index of the label's column
	line    int      // of the first row
	first   []string // of the rows, if it was read and is not a heading
	texts   []string // of the labels, if they are numbered by their texts
	numbers map[string]int
}

// newTable reads the beginning of a table in CSV or JSON lines, plain or gzipped. looks says whether line 1 of CSV is like a heading.
func newTable(in io.Reader, o *Options, looks func(row []string, label int) bool) (*table, error) {
	plain, err := decompressed(in)
	if err != nil {
		return nil, err
	}
	text, err := withoutMark(plain)
	if err != nil {
		return nil, err
	}
	t := &table{options: o, looks: looks, numbers: map[string]int{}}
	if err := t.open(text); err != nil {
		return nil, err
	}
	if o.like != nil {
		for i, text := range o.like.Labels {
			t.numbers[text] = i
		}
		t.texts = o.like.Labels
	}
	row, err := t.rows.Read()
	if errors.Is(err, io.EOF) {
		return nil, errNoSamples
	}
	if err != nil {
		return nil, err
	}
	t.line, _ = t.rows.FieldPos(0)
	t.width = len(row)
	if t.width < 2 {
		return nil, fmt.Errorf("line %d: expected features and a label, separated by commas, found 1 column", t.line)
	}
	byName := false
	if t.label, byName, err = t.labelColumn(row); err != nil {
		return nil, err
	}
	heading := o.Heading == HeadingYes || t.lines
	if o.Heading == HeadingAuto || o.Heading == "" {
		heading = byName || looks(row, t.label)
	}
	row = slices.Clone(row)
	if !heading {
		t.first = row
		return t, nil
	}
	t.named = strings.TrimSpace(row[t.label])
	t.columns = slices.Delete(row, t.label, t.label+1)
	return t, nil
}

// open chooses the reader of rows by the beginning of the text.
func (t *table) open(text *bufio.Reader) error {
	t.lines = beginsWithObject(text)
	switch {
	case t.lines && t.options.Heading == HeadingNo:
		return errors.New("heading no: expected CSV, found JSON lines, whose keys are the heading")
	case t.lines:
		t.rows = &lineReader{text: text}
	case t.options.lines:
		start, _ := text.Peek(20)
		return fmt.Errorf("expected JSON lines, each an object such as {\"width\": 1.5, \"label\": 0}, found %q", start)
	default:
		rows := csv.NewReader(text)
		rows.ReuseRecord = true
		t.rows = rows
	}
	return nil
}

// labelColumn finds the column of the label by its number or, in a heading, by its name.
func (t *table) labelColumn(row []string) (column int, byName bool, err error) {
	name := t.options.Label
	number, err := strconv.Atoi(name)
	if like := t.options.like; name == "" && like != nil && like.LabelColumn != "" {
		name = strings.TrimSpace(like.LabelColumn) // not a number, even if it looks like one
		if t.options.Heading == HeadingNo || !slices.ContainsFunc(row, func(cell string) bool { return strings.TrimSpace(cell) == name }) {
			return 0, false, fmt.Errorf("line 1: expected a heading with the label %q, as in %s, found %.200q: of a table without a heading, name the number of the column with --label", name, t.options.Like, strings.Join(row, ","))
		}
	}
	if name == "" {
		return len(row) - 1, false, nil
	}
	if err == nil && number >= 1 && number <= len(row) {
		return number - 1, false, nil
	}
	if err == nil && t.options.Heading != HeadingYes {
		return 0, false, fmt.Errorf("label %q: expected a column from 1 to %d", name, len(row))
	}
	var found []int
	for i, cell := range row {
		if strings.TrimSpace(cell) == name && t.options.Heading != HeadingNo {
			found = append(found, i)
		}
	}
	switch {
	case len(found) == 1:
		return found[0], true, nil
	case len(found) > 1:
		return 0, false, fmt.Errorf("label %q: expected one column of this name in line %d, found %d: use the number of the column", name, t.line, len(found))
	}
	return 0, false, fmt.Errorf("label %q: expected a column from 1 to %d or a name in a heading, found %.200q in line %d", name, len(row), strings.Join(row, ","), t.line)
}

// labelOf stands for the label where the index of a feature is expected.
const labelOf = -1

// each calls use with the columns of each row but the label, and with the label. at says where column i of the features is.
func (t *table) each(ctx context.Context, use func(row []string, label string, at func(column int) string) error) error {
	row := t.first
	for n := 0; ; n++ {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if n > 0 || row == nil {
			var err error
			row, err = t.rows.Read()
			if errors.Is(err, io.EOF) {
				return nil
			}
			if errors.Is(err, csv.ErrFieldCount) {
				line, _ := t.rows.FieldPos(0)
				return fmt.Errorf("line %d: expected %d fields, as in line %d, found %d", line, t.width, t.line, len(row))
			}
			if err != nil {
				return err
			}
		}
		label, line := row[t.label], t.line
		if n > 0 || t.first == nil {
			line, _ = t.rows.FieldPos(0)
		}
		features := append(row[:t.label], row[t.label+1:]...)
		at := func(column int) string {
			switch {
			case column == labelOf:
				column = t.label
			case column >= t.label:
				column++
			}
			if t.lines {
				return fmt.Sprintf("line %d, key %q", line, t.keyOf(column))
			}
			return fmt.Sprintf("line %d, column %d", line, column+1)
		}
		if err := use(features, label, at); err != nil {
			return t.explain(err, line)
		}
	}
}

// keyOf returns the name of a column in a table with a heading.
func (t *table) keyOf(column int) string {
	switch {
	case column == t.label:
		return t.named
	case column > t.label:
		column--
	}
	return t.columns[column]
}

// explain adds to an error about line 1 how to skip a heading.
func (t *table) explain(err error, line int) error {
	if line == t.line && t.columns == nil && t.options.Heading != HeadingNo {
		return fmt.Errorf("%w; if line %d is a heading, use --header yes", err, line)
	}
	return err
}

// parseLabel reads a label, or says whether a number is above Options.LabelAbove, or numbers a text.
func (t *table) parseLabel(text string) (int, error) {
	text = strings.TrimSpace(text)
	if t.options.TextLabels {
		if text == "" {
			return 0, errors.New("expected a label, found an empty field")
		}
		i, known := t.numbers[text]
		if !known && t.options.like != nil {
			return 0, fmt.Errorf("label %q: expected a label of %s: %.200s", text, t.options.Like, strings.Join(t.texts, ", "))
		}
		if !known {
			i = len(t.texts)
			t.texts = append(t.texts, text)
			t.numbers[text] = i
		}
		if len(t.texts) > maxTextLabels {
			return 0, fmt.Errorf("expected at most %d different labels, found more: choose another column with --label", maxTextLabels)
		}
		return i, nil
	}
	if above := t.options.LabelAbove; above != nil {
		value, err := strconv.ParseFloat(text, 64)
		if err != nil || math.IsNaN(value) {
			return 0, fmt.Errorf("label %q is not a number", text)
		}
		if value > *above {
			return 1, nil
		}
		return 0, nil
	}
	label, err := strconv.Atoi(text)
	if err != nil {
		label, err = wholeNumber(text)
	}
	if err != nil || label < 0 || label >= math.MaxInt32 {
		return 0, fmt.Errorf("label %q is not a whole number from 0 to %d: choose another column with --label, or number texts with --text-labels",
			text, math.MaxInt32-1)
	}
	return label, nil
}

// wholeNumber reads a whole number that has a fraction of zero, such as 1.0: some programs write labels so.
func wholeNumber(text string) (int, error) {
	value, err := strconv.ParseFloat(text, 64)
	if err == nil && (value != math.Trunc(value) || math.Abs(value) > math.MaxInt32) {
		err = strconv.ErrSyntax
	}
	return int(value), err
}

// maxTextLabels bounds the classes that are numbered by their texts.
const maxTextLabels = 1000

// sortTexts numbers text labels in the order of the texts, so that the order of the rows does not matter.
func (t *table) sortTexts(labels []int) {
	if !t.options.TextLabels || t.options.like != nil {
		return
	}
	sorted := slices.Sorted(slices.Values(t.texts))
	for i, label := range labels {
		labels[i], _ = slices.BinarySearch(sorted, t.texts[label])
	}
	t.texts = sorted
}

// origin is what a conversion says about the table.
func (t *table) origin() origin {
	return origin{Columns: t.columns, LabelColumn: t.named, Labels: t.texts, LabelAbove: t.options.LabelAbove}
}

// isNumber accepts what ParseFloat does, but no words such as "infinity" and "nan".
func isNumber(text string) bool {
	value, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
	return err == nil && !math.IsNaN(value) && !math.IsInf(value, 0)
}

// decompressed unpacks in if it is gzipped.
func decompressed(in io.Reader) (io.Reader, error) {
	buffered := bufio.NewReaderSize(in, 64<<10)
	if start, _ := buffered.Peek(2); string(start) != "\x1f\x8b" {
		return buffered, nil // an error of Peek comes again from the first read
	}
	plain, err := gzip.NewReader(buffered)
	if err != nil {
		return nil, fmt.Errorf("decompress input: %w", cutShort(err))
	}
	return gzipped{plain}, nil
}

// gzipped is a gzip stream whose end is named if it is missing.
type gzipped struct{ in io.Reader }

func (g gzipped) Read(p []byte) (int, error) {
	n, err := g.in.Read(p)
	return n, cutShort(err)
}

var errCutShort = errors.New("the gzip file is cut short")

func cutShort(err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return errCutShort
	}
	return err
}

// withoutMark skips the byte order mark that some programs write at the beginning of UTF-8 text. A mark left in the first cell would
// become a part of its value. UTF-16 text is an error.
func withoutMark(in io.Reader) (*bufio.Reader, error) {
	const mark = "\xef\xbb\xbf"
	buffered := bufio.NewReader(in)
	start, _ := buffered.Peek(len(mark)) // its error comes again from the first read
	switch {
	case string(start) == mark:
		_, _ = buffered.Discard(len(mark)) // these bytes were peeked: cannot fail
	case bytes.HasPrefix(start, []byte("\xff\xfe")), bytes.HasPrefix(start, []byte("\xfe\xff")):
		return nil, errors.New("expected UTF-8 text, found UTF-16: convert the file first, as with: iconv -f UTF-16 -t UTF-8 TABLE > TABLE.utf8")
	case bytes.IndexByte(start, 0) >= 0:
		return nil, errors.New("expected UTF-8 text, found a zero byte at its beginning: if the file is UTF-16, convert it first, as with iconv")
	}
	return buffered, nil
}
