package local

import (
	"context"
	"iter"

	"trainmaster/dataset"
)

// records yields the records of several files, one after another.
func records(paths []string) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		for _, path := range paths {
			if !fileRecords(path, yield) {
				return
			}
		}
	}
}

func fileRecords(path string, yield func([]byte, error) bool) (more bool) {
	file, err := dataset.Open(path)
	if err != nil {
		yield(nil, err)
		return false
	}
	defer file.Close()
	for record, err := range file.Records() {
		if !yield(record, err) || err != nil {
			return false
		}
	}
	return true
}

// until yields records until ctx ends, and then its error.
func until(ctx context.Context, records iter.Seq2[[]byte, error]) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		for record, err := range records {
			if err == nil {
				err = context.Cause(ctx)
			}
			if !yield(record, err) || err != nil {
				return
			}
		}
	}
}
