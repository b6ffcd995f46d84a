package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"trainmaster/dataset"
	"trainmaster/dataset/convert"
)

// errNoData is in the error of data that does not exist.
var errNoData = errors.New("no such data")

// datasetFiles lists the files of a dataset: the shards PREFIX-00000-of-00004 and so on, with PREFIX-test-00000-of-00001 and
// so on held out, or the files that a path or glob names. Paths are absolute.
func datasetFiles(ctx context.Context, name string) (train, test []string, err error) {
	prefix, err := filepath.Abs(name)
	if err != nil {
		return nil, nil, err
	}
	if train, test, err = convert.Shards(prefix); len(train) > 0 || err != nil && !errors.Is(err, fs.ErrNotExist) {
		return train, test, err
	}
	listing, err := dataset.Source{}.List(ctx, []string{name})
	if err != nil {
		return nil, nil, fmt.Errorf("%q: %w: expected shards %s-00000-of-00001 and so on, as `master recordio convert` writes them, or RecordIO files: %w", name, errNoData, name, err)
	}
	for _, f := range listing.Files {
		train = append(train, f.Path)
	}
	return train, nil, nil
}
