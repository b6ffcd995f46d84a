package convert

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"trainmaster/dataset"
)

// Resolve lists the files of datasets. A name is the prefix of a conversion, or the path or glob of RecordIO or TFRecord files. Paths are absolute.
// The held-out shards of a conversion are in test, also if a glob names them together with the shards to train on. A glob that names
// only held-out shards has all files in train.
//
// A name without a file is an error with the expected files. A missing shard, and shards of two conversions, are errors.
func Resolve(ctx context.Context, names ...string) (train, test []string, err error) {
	for _, name := range names {
		some, heldOut, err := resolve(ctx, name)
		if err != nil {
			return nil, nil, err
		}
		train, test = append(train, some...), append(test, heldOut...)
	}
	return unique(train), unique(test), nil
}

// unique drops duplicate paths.
func unique(paths []string) []string {
	seen := map[string]bool{}
	return slices.DeleteFunc(paths, func(path string) bool {
		again := seen[path]
		seen[path] = true
		return again
	})
}

func resolve(ctx context.Context, name string) (train, test []string, err error) {
	if dataset.IsRange(name) {
		return nil, nil, fmt.Errorf("data %q: %w: expected files for the built-in models: use trainers of your own", name, dataset.ErrNoFile)
	}
	if train, test, err = Shards(name); len(train) > 0 || err != nil {
		return train, test, err
	}
	listing, err := dataset.Source{}.List(ctx, []string{name})
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil, fmt.Errorf("data %q: expected shards %s-00000-of-00001 and so on, as `master recordio convert` writes them, or a file or glob of RecordIO files, found neither: %w",
			name, name, err)
	case err != nil:
		return nil, nil, err
	}
	var paths []string
	for _, f := range listing.Files {
		paths = append(paths, f.Path)
	}
	train, test = splitHeldOut(paths)
	return train, test, nil
}

var testShardEnd = regexp.MustCompile(`-test-\d{5}-of-\d{5}$`)

// splitHeldOut separates the held-out shards of conversions whose other shards are among the paths.
func splitHeldOut(paths []string) (train, test []string) {
	prefixes := map[string]bool{}
	for _, path := range paths {
		if !testShardEnd.MatchString(path) {
			prefixes[prefixOf(path)] = true
		}
	}
	for _, path := range paths {
		if prefix := testShardEnd.ReplaceAllString(path, ""); prefix != path && prefixes[prefix] {
			test = append(test, path)
		} else {
			train = append(train, path)
		}
	}
	return train, test
}

// prefixOf returns the prefix of a shard, or "" of a file with another name.
func prefixOf(path string) string {
	prefix := shardEnd.ReplaceAllString(path, "")
	if prefix == path {
		return ""
	}
	return prefix
}

// NameOf returns the name of the dataset of a file, for use in other file names: the prefix of a shard, or the file name without its
// extension.
func NameOf(path string) string {
	if prefix := prefixOf(path); prefix != "" {
		return filepath.Base(prefix)
	}
	return strings.TrimSuffix(filepath.Base(path), filepath.Ext(path))
}
