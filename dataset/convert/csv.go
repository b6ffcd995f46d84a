package convert

import (
	"bufio"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"

	"github.com/klauspost/compress/gzip"
)

// CSV converts a table without a heading, plain or gzipped, in which each row is a sample: the values of the pixels, whole
// numbers from 0 to 255, and in the last column the label, a whole number from 0.
func CSV(ctx context.Context, in io.Reader, o Options) (Result, error) {
	if err := o.validate(); err != nil {
		return Result{}, err
	}
	plain, err := decompressed(in)
	if err != nil {
		return Result{}, err
	}
	t, err := readCSV(ctx, plain, o.MaxPixel)
	if err != nil {
		return Result{}, fmt.Errorf("read CSV: %w", err)
	}
	return write(ctx, t, o)
}

func readCSV(ctx context.Context, in io.Reader, maxPixel uint8) (*imageTable, error) {
	rows := csv.NewReader(in)
	rows.ReuseRecord = true
	t := new(imageTable)
	largest := uint8(0)
	for {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		row, err := rows.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		if len(row) < 2 {
			return nil, errors.New("line 1: expected pixels and a label, separated by commas")
		}
		t.width = len(row) - 1
		for i, field := range row {
			limit := math.MaxUint8
			if i == t.width {
				limit = math.MaxInt32
			}
			value, err := strconv.Atoi(field)
			if err != nil || value < 0 || value > limit {
				line, column := rows.FieldPos(i)
				return nil, fmt.Errorf("line %d, column %d: %q is not a whole number from 0 to %d", line, column, field, limit)
			}
			if i == t.width {
				t.labels = append(t.labels, value)
			} else {
				t.pixels = append(t.pixels, uint8(value))
				largest = max(largest, uint8(value))
			}
		}
	}
	if maxPixel > 0 && largest > maxPixel {
		return nil, fmt.Errorf("the largest value is %d, above the maximum of %d that was given", largest, maxPixel)
	}
	if maxPixel == 0 {
		maxPixel = max(largest, 1)
	}
	t.scale = 1 / float32(maxPixel)
	return t, nil
}

// decompressed unpacks in if it is gzipped.
func decompressed(in io.Reader) (io.Reader, error) {
	buffered := bufio.NewReaderSize(in, 64<<10)
	if start, _ := buffered.Peek(2); string(start) != "\x1f\x8b" {
		return buffered, nil // an error of Peek comes again from the first read
	}
	plain, err := gzip.NewReader(buffered)
	if err != nil {
		return nil, fmt.Errorf("decompress input: %w", err)
	}
	return plain, nil
}
