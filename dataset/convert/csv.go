package convert

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"trainmaster/dataset/sample"
)

// CSV converts a table of numbers, in CSV or JSON lines, plain or gzipped, in which each row is a sample: features, and a label in the column that
// Options.Label names. A table whose features are all whole numbers from 0 to 255 becomes a dataset of pixels; any other finite
// numbers become a dataset of numbers, scaled as Options.Scaling says.
func CSV(ctx context.Context, in io.Reader, o Options) (Result, error) {
	if err := o.validate(); err != nil {
		return Result{}, err
	}
	t, err := readCSV(ctx, in, &o)
	if err != nil {
		return Result{}, fmt.Errorf("read table: %w", err)
	}
	return write(ctx, t, o)
}

// JSONLines converts a table like CSV, which also reads JSON lines, but refuses CSV. Each line is an object with the keys of line 1 in
// any order. The keys are the heading. A value is a number, a text, or true or false, which mean 1 and 0.
func JSONLines(ctx context.Context, in io.Reader, o Options) (Result, error) {
	o.lines = true
	return CSV(ctx, in, o)
}

func readCSV(ctx context.Context, in io.Reader, o *Options) (samples, error) {
	t, err := newTable(in, o, func(row []string, _ int) bool { return !slices.ContainsFunc(row, isNumber) })
	if err != nil {
		return nil, err
	}
	n := numericTable{width: t.width - 1}
	if o.like != nil && o.like.Kind == sample.Numbers {
		n.numbers = []float64{} // whole numbers are none of pixels then
	}
	if err := t.each(ctx, func(row []string, text string, at func(int) string) error {
		for i, field := range row {
			value, err := parseNumber(field)
			if err != nil && t.columns != nil && o.Label == "" {
				return fmt.Errorf("%s: %w: if the column %q has the label, use --label", at(i), err, t.columns[i])
			}
			if err != nil {
				return fmt.Errorf("%s: %w", at(i), err)
			}
			n.add(value, at(i))
		}
		label, err := t.parseLabel(text)
		if err != nil {
			return fmt.Errorf("%s: %w", at(labelOf), err)
		}
		n.labels = append(n.labels, label)
		return nil
	}); err != nil {
		return nil, err
	}
	t.sortTexts(n.labels)
	return n.samples(o, t.origin())
}

// parseNumber reads a feature.
func parseNumber(field string) (float64, error) {
	value, err := strconv.ParseFloat(strings.TrimSpace(field), 64)
	switch {
	case errors.Is(err, strconv.ErrRange), err == nil && !math.IsInf(value, 0) && math.IsInf(float64(float32(value)), 0):
		return 0, fmt.Errorf("expected a number within ±%.2g, the range of float32, found %.40s", math.MaxFloat32, field)
	case err != nil, math.IsNaN(value), math.IsInf(value, 0):
		return 0, fmt.Errorf("%.200q is not a number", field)
	}
	return value, nil
}

// numericTable holds pixels until a value is not a pixel, and numbers afterwards.
type numericTable struct {
	width   int
	pixels  []byte
	numbers []float64 // nil: pixels
	labels  []int
	other   string // where the first value that is no pixel was found
}

func (t *numericTable) add(value float64, at string) {
	if t.numbers == nil {
		if value >= 0 && value <= math.MaxUint8 && value == math.Trunc(value) {
			t.pixels = append(t.pixels, uint8(value))
			return
		}
		t.other = fmt.Sprintf("%v in %s", value, at)
		t.numbers = make([]float64, len(t.pixels), 2*len(t.pixels)+t.width)
		for i, pixel := range t.pixels {
			t.numbers[i] = float64(pixel)
		}
		t.pixels = nil
	}
	t.numbers = append(t.numbers, value)
}

// samples returns the table as pixels or as numbers.
func (t *numericTable) samples(o *Options, from origin) (samples, error) {
	if t.numbers != nil {
		if o.MaxPixel > 0 {
			return nil, fmt.Errorf("a maximum pixel of %d was given: expected whole numbers from 0 to 255, found %s", o.MaxPixel, t.other)
		}
		table := &numberTable{width: t.width, values: t.numbers, labels: t.labels, scaling: o.Scaling, origin: from}
		if like := o.like; like != nil {
			if like.Kind == sample.Pixels {
				return nil, fmt.Errorf("like %s: expected whole numbers from 0 to 255, as in that dataset, found %s", o.Like, t.other)
			}
			table.scaling, table.Means, table.Deviations = ScalingNone, like.Means, like.Deviations // nothing is learned
		}
		return table, nil
	}
	if len(t.pixels) == 0 {
		return nil, errNoSamples
	}
	if like := o.like; like != nil {
		return &imageTable{width: t.width, pixels: t.pixels, labels: t.labels, scale: like.Scale, origin: from}, nil
	}
	largest := slices.Max(t.pixels)
	maxPixel := o.MaxPixel
	if maxPixel > 0 && largest > maxPixel {
		return nil, fmt.Errorf("the largest value is %d, above the maximum of %d that was given", largest, maxPixel)
	}
	if maxPixel == 0 {
		maxPixel = max(largest, 1)
	}
	return &imageTable{width: t.width, pixels: t.pixels, labels: t.labels, scale: 1 / float32(maxPixel), origin: from}, nil
}

// numberTable is a dataset of numbers: sample i has labels[i] and the i-th run of width values.
type numberTable struct {
	width   int
	values  []float64
	labels  []int
	scaling string
	origin
}

func (t *numberTable) len() int      { return len(t.labels) }
func (t *numberTable) shape() Result { return t.result(sample.Numbers, t.width, t.labels) }

// fit brings each column to a mean of 0 and a deviation of 1 over the samples to train on. The others are scaled by the same numbers,
// so that nothing of them influences the training.
func (t *numberTable) fit(train []int) {
	if t.scaling == ScalingNone {
		return
	}
	t.Means, t.Deviations = make([]float64, t.width), make([]float64, t.width)
	for column := range t.width {
		var mean, squares float64 // Welford's method
		for n, i := range train {
			value := t.values[i*t.width+column]
			delta := value - mean
			mean += delta / float64(n+1)
			squares += delta * (value - mean)
		}
		deviation := math.Sqrt(squares / float64(max(len(train), 1)))
		if deviation == 0 {
			deviation = 1
		}
		t.Means[column], t.Deviations[column] = mean, deviation
	}
}

func (t *numberTable) append(record []byte, i, classes int) ([]byte, error) {
	s := sample.Sample{Label: t.labels[i], Classes: classes, Scale: 1, Numbers: make([]float32, t.width)}
	for column, value := range t.values[i*t.width:][:t.width] {
		if t.Means != nil {
			value = (value - t.Means[column]) / t.Deviations[column]
		}
		if math.Abs(value) > math.MaxFloat32 {
			return nil, fmt.Errorf("column %d of the features: %v does not fit in single precision", column+1, value)
		}
		s.Numbers[column] = float32(value)
	}
	return sample.Append(record, s), nil
}

var errNoSamples = errors.New("the input has no samples")
