package convert

import (
	"context"
	"fmt"
	"io"

	"trainmaster/dataset/sample"
)

// Categorical converts a table in CSV or JSON lines, plain or gzipped, in which each row is an example of sample.Categorical. Each field has the text of a
// category. The column of Options.Label has the label: a whole number from 0, or any number with Options.LabelAbove.
func Categorical(ctx context.Context, in io.Reader, o Options) (Result, error) {
	if err := o.validate(); err != nil {
		return Result{}, err
	}
	t, err := readCategories(ctx, in, &o)
	if err != nil {
		return Result{}, fmt.Errorf("read table: %w", err)
	}
	return write(ctx, t, o)
}

// categoryTable is a dataset of categories: example i has labels[i] and the i-th run of fields ids.
type categoryTable struct {
	fields int
	ids    []int64
	labels []int
	origin
}

func (t *categoryTable) len() int      { return len(t.labels) }
func (t *categoryTable) fit([]int)     {}
func (t *categoryTable) shape() Result { return t.result(sample.Categories, t.fields, t.labels) }

func (t *categoryTable) append(record []byte, i, classes int) ([]byte, error) {
	c := sample.Categorical{Label: t.labels[i], Classes: classes, IDs: t.ids[i*t.fields:][:t.fields]}
	return sample.AppendCategorical(record, c), nil
}

func readCategories(ctx context.Context, in io.Reader, o *Options) (*categoryTable, error) {
	t, err := newTable(in, o, func(row []string, label int) bool { return !isNumber(row[label]) })
	if err != nil {
		return nil, err
	}
	if named := t.lines || o.like != nil && o.like.LabelColumn != ""; !named && o.TextLabels && (o.Heading == HeadingAuto || o.Heading == "") {
		return nil, fmt.Errorf("text labels in a table of categories: expected --header yes or --header no, because a heading looks like a row")
	}
	c := &categoryTable{fields: t.width - 1}
	if c.fields > sample.MaxFields {
		return nil, fmt.Errorf("line %d: expected 1 to %d categories and a label, separated by commas, found %d columns", t.line, sample.MaxFields, t.width)
	}
	if err := t.each(ctx, func(row []string, text string, at func(int) string) error {
		for i, text := range row {
			c.ids = append(c.ids, sample.CategoryID(i, text))
		}
		label, err := t.parseLabel(text)
		if err != nil {
			return fmt.Errorf("%s: %w", at(labelOf), err)
		}
		c.labels = append(c.labels, label)
		return nil
	}); err != nil {
		return nil, err
	}
	t.sortTexts(c.labels)
	c.origin = t.origin()
	return c, nil
}
