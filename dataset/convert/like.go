package convert

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"trainmaster/dataset/sample"
)

// ReadDescription reads the description that a conversion to prefix wrote. Paths are as in the file.
func ReadDescription(prefix string) (Result, error) {
	path := DescriptionPath(prefix)
	d, err := readDescription(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Result{}, fmt.Errorf("%s: expected the description of a dataset, as `master recordio convert` writes it with the shards, found no file", path)
	}
	return d.Result, err
}

func readDescription(path string) (d description, err error) {
	file, err := os.Open(path)
	if err != nil {
		return d, err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxDescriptionBytes))
	if err != nil {
		return d, err
	}
	if err := json.Unmarshal(text, &d); err != nil {
		return d, fmt.Errorf("%s: expected the description of a dataset in JSON: %w", path, err)
	}
	if d.Version > descriptionVersion {
		return d, fmt.Errorf("%s: expected version %d, found %d: use a newer release", path, descriptionVersion, d.Version)
	}
	return d, nil
}

// takeLike takes the values that the new dataset must share with Options.Like from its description.
func (o *Options) takeLike() error {
	if o.Like == "" {
		return nil
	}
	like, err := ReadDescription(o.Like)
	if err != nil {
		return fmt.Errorf("like %s: %w", o.Like, err)
	}
	switch {
	case o.TextLabels || o.Scaling != "" || o.MaxPixel != 0:
		return fmt.Errorf("like %s: expected no options of labels or scaling: that dataset sets them", o.Like)
	case like.LabelAbove != nil && o.LabelAbove != nil && *like.LabelAbove != *o.LabelAbove:
		return fmt.Errorf("like %s: expected labels above %v, as in that dataset, found above %v", o.Like, *like.LabelAbove, *o.LabelAbove)
	case like.Classes < 1 || like.Features < 1:
		return fmt.Errorf("like %s: expected at least 1 class and 1 feature, found %d and %d", o.Like, like.Classes, like.Features)
	case len(like.Means) != len(like.Deviations) || like.Means != nil && len(like.Means) != like.Features:
		return fmt.Errorf("like %s: expected means and deviations of %d features, found %d and %d", o.Like, like.Features, len(like.Means), len(like.Deviations))
	case slices.Contains(like.Deviations, 0):
		return fmt.Errorf("like %s: expected deviations above 0, found 0", o.Like)
	}
	o.like, o.TextLabels = &like, like.Labels != nil
	if o.LabelAbove == nil {
		o.LabelAbove = like.LabelAbove
	}
	return nil
}

// check reports how a dataset of this shape differs from that of Options.Like.
func (o *Options) check(r Result) error {
	like := o.like
	switch {
	case like == nil:
		return nil
	case r.Kind != like.Kind:
		return fmt.Errorf("like %s: expected %s, found %s", o.Like, like.Kind, r.Kind)
	case r.Features != like.Features:
		return fmt.Errorf("like %s: expected %d features, found %d", o.Like, like.Features, r.Features)
	case like.Columns != nil && len(like.Columns) != like.Features:
		return fmt.Errorf("like %s: expected %d columns, found %d: the description is damaged, convert that dataset again", o.Like, like.Features, len(like.Columns))
	case r.Classes > like.Classes:
		return fmt.Errorf("like %s: expected labels below %d, found %d", o.Like, like.Classes, r.Classes-1)
	case r.Kind == sample.Pixels && r.Scale != like.Scale:
		return fmt.Errorf("like %s: expected pixels divided by %v, found %v", o.Like, 1/like.Scale, 1/r.Scale)
	}
	for i, column := range r.Columns {
		if like.Columns != nil && strings.TrimSpace(column) != strings.TrimSpace(like.Columns[i]) {
			return fmt.Errorf("like %s: expected feature %d to be %q, found %q: put the columns into the order of that dataset", o.Like, i+1, like.Columns[i], column)
		}
	}
	return nil
}
