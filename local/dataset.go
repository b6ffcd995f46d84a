package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"

	"trainmaster/dataset"
)

// shardName matches the end of the names that `master recordio convert` and `write` give to shards.
var shardName = regexp.MustCompile(`^-(test-)?\d+-of-(\d+)$`)

// ErrNoData is in the error of data that does not exist.
var ErrNoData = errors.New("no such data")

// datasetFiles lists the files of a dataset: the shards PREFIX-00000-of-00004 and so on, with PREFIX-test-00000-of-00001 and
// so on held out, or the files that a path or glob names. Paths are absolute.
func datasetFiles(ctx context.Context, name string) (train, test []string, err error) {
	if train, test, err = shardsOf(name); err != nil || len(train) > 0 {
		return train, test, err
	}
	listing, err := dataset.Source{}.List(ctx, []string{name})
	if err != nil {
		return nil, nil, fmt.Errorf("%q: %w: expected shards %s-00000-of-00001 and so on, as `master recordio convert` writes them, or RecordIO files: %w", name, ErrNoData, name, err)
	}
	for _, f := range listing.Files {
		train = append(train, f.Path)
	}
	return train, nil, nil
}

// shardsOf lists the shards of a prefix, none if there are none. Shards that are missing, or are of two conversions, are an
// error.
func shardsOf(prefix string) (train, test []string, err error) {
	prefix, err = filepath.Abs(prefix)
	if err != nil {
		return nil, nil, err
	}
	entries, err := os.ReadDir(filepath.Dir(prefix))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil, nil
	} else if err != nil {
		return nil, nil, err
	}
	found := map[bool][]string{}
	counts := map[bool]string{}
	base := filepath.Base(prefix)
	for _, entry := range entries { // sorted by name
		if len(entry.Name()) < len(base) || entry.Name()[:len(base)] != base {
			continue
		}
		match := shardName.FindStringSubmatch(entry.Name()[len(base):])
		if match == nil {
			continue
		}
		held := match[1] != ""
		path := filepath.Join(filepath.Dir(prefix), entry.Name())
		if counts[held] != "" && counts[held] != match[2] {
			return nil, nil, fmt.Errorf("%q: shards of two conversions, %s and %s: remove those of the older one", prefix, found[held][0], path)
		}
		counts[held] = match[2]
		found[held] = append(found[held], path)
	}
	for held, paths := range found {
		if want, _ := strconv.Atoi(counts[held]); len(paths) != want {
			return nil, nil, fmt.Errorf("%q: expected %d shards such as %s, found %d: convert the data again", prefix, want, paths[0], len(paths))
		}
	}
	return found[false], found[true], nil
}
