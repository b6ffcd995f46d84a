package convert

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"

	"trainmaster/dataset/sample"
)

// Categorical converts a table without a heading, plain or gzipped, in which each row is an example of sample.Categorical:
// the text of one category for each field, and in the last column the label, a whole number from 0, or with
// Options.LabelAbove any number.
func Categorical(ctx context.Context, in io.Reader, o Options) (Result, error) {
	if err := o.validate(); err != nil {
		return Result{}, err
	}
	plain, err := decompressed(in)
	if err != nil {
		return Result{}, err
	}
	t, err := readCategories(ctx, plain, o.LabelAbove)
	if err != nil {
		return Result{}, fmt.Errorf("read CSV: %w", err)
	}
	return write(ctx, t, o)
}

// categoryTable is a dataset of categories: example i has labels[i] and the i-th run of fields ids.
type categoryTable struct {
	fields int
	ids    []int64
	labels []int
}

func (t *categoryTable) len() int                       { return len(t.labels) }
func (t *categoryTable) shape() (features, classes int) { return t.fields, classesOf(t.labels) }

func (t *categoryTable) append(record []byte, i int) []byte {
	return sample.AppendCategorical(record, sample.Categorical{Label: t.labels[i], IDs: t.ids[i*t.fields:][:t.fields]})
}

func readCategories(ctx context.Context, in io.Reader, above *float64) (*categoryTable, error) {
	rows := csv.NewReader(in)
	rows.ReuseRecord = true
	t := new(categoryTable)
	for {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		row, err := rows.Read()
		if errors.Is(err, io.EOF) {
			return t, nil
		}
		if err != nil {
			return nil, err
		}
		if t.fields = len(row) - 1; t.fields < 1 || t.fields > sample.MaxFields {
			return nil, fmt.Errorf("line 1: expected 1 to %d categories and a label, separated by commas, found %d columns", sample.MaxFields, len(row))
		}
		for i, text := range row[:t.fields] {
			t.ids = append(t.ids, sample.CategoryID(i, text))
		}
		label, err := parseLabel(row[t.fields], above)
		if err != nil {
			line, column := rows.FieldPos(t.fields)
			return nil, fmt.Errorf("line %d, column %d: %w", line, column, err)
		}
		t.labels = append(t.labels, label)
	}
}

// parseLabel reads a label, or whether a number is above a limit.
func parseLabel(text string, above *float64) (int, error) {
	if above == nil {
		label, err := strconv.Atoi(text)
		if err != nil || label < 0 || label > math.MaxInt32 {
			return 0, fmt.Errorf("%q is not a whole number from 0 to %d", text, math.MaxInt32)
		}
		return label, nil
	}
	value, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsNaN(value) {
		return 0, fmt.Errorf("%q is not a number", text)
	}
	if value > *above {
		return 1, nil
	}
	return 0, nil
}
