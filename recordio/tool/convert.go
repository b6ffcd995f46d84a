package tool

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"trainmaster/dataset/convert"
)

// Convert converts files of a format, csv, jsonl, idx or categorical, to shards.
func Convert(ctx context.Context, format string, paths []string, o convert.Options) (result convert.Result, err error) {
	var inputs []io.Reader
	for _, path := range paths {
		file, err := openInput(ctx, path)
		if err != nil {
			return result, err
		}
		defer file.Close()
		inputs = append(inputs, file)
	}
	switch format {
	case "idx":
		result, err = convert.IDX(ctx, inputs[0], inputs[1], o)
	case "categorical":
		result, err = convert.Categorical(ctx, inputs[0], o)
	case "jsonl":
		result, err = convert.JSONLines(ctx, inputs[0], o)
	default:
		result, err = convert.CSV(ctx, inputs[0], o)
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		err = fmt.Errorf("convert %s: %w", strings.Join(paths, ", "), err)
	}
	return result, err
}
