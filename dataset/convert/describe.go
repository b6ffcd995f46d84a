package convert

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"syscall"

	"trainmaster/dataset"
	"trainmaster/dataset/sample"
	"trainmaster/recordio"
)

// DescriptionPath is the file in which a conversion describes its dataset.
func DescriptionPath(prefix string) string { return prefix + ".dataset.json" }

// description is the content of that file. Paths are relative to its directory, so that a dataset can be moved as a whole.
type description struct {
	Version int `json:"version"`
	Result
}

const (
	descriptionVersion  = 1
	maxDescriptionBytes = 64 << 20
)

// describe writes the description.
func (w *shardWriter) describe(r Result) error {
	d := description{Version: descriptionVersion, Result: r}
	d.Train.Paths, d.Test.Paths = baseNames(r.Train.Paths), baseNames(r.Test.Paths)
	text, err := json.MarshalIndent(d, "", "  ")
	if err != nil {
		return err
	}
	return w.file(DescriptionPath(w.options.Prefix), func(file *os.File) error {
		if _, err := file.Write(append(text, '\n')); err != nil {
			return err
		}
		return file.Sync()
	})
}

func baseNames(paths []string) []string {
	names := make([]string, len(paths))
	for i, path := range paths {
		names[i] = filepath.Base(path)
	}
	return names
}

// Describe describes the dataset that was converted to prefix. The shards are the authority: their names say which belong to the
// dataset, their chunk headers how many records there are, and the first record says its kind and the numbers of features and
// classes. If records do not state the number of classes (older ones), all of them are read. Names of columns and labels come from
// the description file, if there is one of a dataset of this shape.
//
// A missing shard, shards of two conversions, and records of another program are errors.
func Describe(ctx context.Context, prefix string) (Result, error) {
	train, test, err := Shards(prefix)
	if err == nil && len(train) == 0 {
		err = fmt.Errorf("expected files named %s-00000-of-00001 and so on, found none: write them with `master recordio convert`", prefix)
	}
	if err != nil {
		return Result{}, fmt.Errorf("describe the dataset %s: %w", prefix, err)
	}
	return DescribeFiles(ctx, train, test)
}

// DescribeFiles is Describe of files that Resolve listed. There must be at least one to train on.
func DescribeFiles(ctx context.Context, train, test []string) (Result, error) {
	r, err := describeFiles(ctx, train, test)
	if err != nil {
		return Result{}, fmt.Errorf("describe the dataset: %w", err)
	}
	return r, nil
}

func describeFiles(ctx context.Context, train, test []string) (r Result, err error) {
	r.Train.Paths, r.Test.Paths = train, test
	var shape sample.Shape
	for _, split := range []*Split{&r.Train, &r.Test} {
		for _, path := range split.Paths {
			if ctx.Err() != nil {
				return r, context.Cause(ctx)
			}
			found, err := split.add(ctx, path)
			if err != nil {
				return r, err
			}
			if shape.Kind == "" {
				shape = found
			}
			if found.Kind != shape.Kind || found.Features != shape.Features || found.Classes != shape.Classes {
				return r, fmt.Errorf("%s: expected %d features and %d classes (%s) as in %s, found %d and %d (%s)", path,
					shape.Features, shape.Classes, shape.Kind, r.Train.Paths[0], found.Features, found.Classes, found.Kind)
			}
		}
	}
	if shape.Classes == 0 {
		if shape.Classes, err = countClasses(ctx, append(r.Train.Paths[:len(r.Train.Paths):len(r.Train.Paths)], r.Test.Paths...)); err != nil {
			return r, err
		}
	}
	r.Kind, r.Features, r.Classes, r.Scale = shape.Kind, shape.Features, shape.Classes, shape.Scale
	if prefix := prefixOf(train[0]); prefix != "" {
		r.origin, err = readOrigin(DescriptionPath(prefix), r)
	}
	return r, err
}

// add counts the records and chunks of a shard, and describes its first record.
func (s *Split) add(ctx context.Context, path string) (shape sample.Shape, err error) {
	file, err := dataset.Open(path)
	if err != nil {
		return shape, err
	}
	defer file.Close()
	index, err := file.Index(ctx)
	if err != nil {
		return shape, err
	}
	for _, chunk := range index {
		s.Records += int(chunk.Records)
	}
	s.Chunks += len(index)
	for record, err := range file.Records() {
		if err == nil {
			shape, err = sample.Describe(record)
		}
		if err != nil {
			return shape, fmt.Errorf("first record of %s: %w", path, err)
		}
		return shape, nil
	}
	return shape, fmt.Errorf("%s: expected at least one record, found none", path)
}

// countClasses reads the labels of all records.
func countClasses(ctx context.Context, paths []string) (classes int, err error) {
	for _, path := range paths {
		file, err := dataset.Open(path)
		if err != nil {
			return 0, err
		}
		for record, err := range file.Records() {
			if err == nil {
				err = context.Cause(ctx)
			}
			label := 0
			if err == nil {
				label, err = sample.Label(record)
			}
			if err != nil {
				return 0, errors.Join(err, file.Close())
			}
			classes = max(classes, label+1)
		}
		if err := file.Close(); err != nil {
			return 0, err
		}
	}
	return classes, nil
}

// Shards lists the shards of prefix to train on, and those held out, without a look at their records. Paths are absolute. None is no
// error. A missing shard, or shards of two conversions, are errors.
func Shards(prefix string) (train, test []string, err error) {
	if prefix == "" {
		return nil, nil, nil
	}
	if prefix, err = filepath.Abs(prefix); err != nil {
		return nil, nil, err
	}
	if train, err = shardsOf(prefix); err == nil {
		test, err = shardsOf(prefix + "-test")
	}
	return train, test, err
}

var shardName = regexp.MustCompile(`^-(\d{5})-of-(\d{5})$`)

// shardsOf lists the shards of prefix, in order; none is no error.
func shardsOf(prefix string) ([]string, error) {
	folder, base := filepath.Dir(prefix), filepath.Base(prefix)
	entries, err := os.ReadDir(folder)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return nil, nil
	}
	if err != nil {
		return nil, recordio.OpenError(prefix, err)
	}
	var paths []string
	total := ""
	for _, entry := range entries {
		name := entry.Name()
		if len(name) < len(base) || name[:len(base)] != base {
			continue
		}
		m := shardName.FindStringSubmatch(name[len(base):])
		if m == nil {
			continue
		}
		if total == "" {
			total = m[2]
		}
		if m[2] != total {
			return nil, fmt.Errorf("expected shards of one conversion, found -of-%s and -of-%s", total, m[2])
		}
		if m[1] != fmt.Sprintf("%05d", len(paths)) {
			return nil, fmt.Errorf("expected the shard %s-%05d-of-%s, found %s", prefix, len(paths), total, name)
		}
		paths = append(paths, filepath.Join(folder, name))
	}
	if n, _ := strconv.Atoi(total); n != len(paths) {
		return nil, fmt.Errorf("expected %d shards %s-*-of-%s, found %d", n, prefix, total, len(paths))
	}
	return paths, nil
}

// readOrigin reads the part of a description that the records do not have.
func readOrigin(path string, r Result) (o origin, err error) {
	d, err := readDescription(path)
	if errors.Is(err, fs.ErrNotExist) {
		return o, nil
	}
	if err != nil {
		return o, fmt.Errorf("%w: remove the file to continue without names", err)
	}
	if d.Kind != r.Kind || d.Features != r.Features || d.Classes != r.Classes {
		return o, nil // of an earlier conversion with the same prefix
	}
	return d.origin, nil
}
