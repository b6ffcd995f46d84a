package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"trainmaster/dataset"
	"trainmaster/dataset/convert"
	"trainmaster/dataset/sample"
	"trainmaster/trainer/model"
	"trainmaster/trainer/reference"
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

// describe describes a converted dataset. Paths are absolute.
func describe(ctx context.Context, name string) (convert.Result, error) {
	prefix, err := filepath.Abs(name)
	if err != nil {
		return convert.Result{}, err
	}
	return convert.Describe(ctx, prefix)
}

// takeShape chooses a model for the user's shards if none is set, and refuses a model of other features. It returns the dataset
// of model.RecipeFor whose settings are taken.
func (c *Config) takeShape() (like string, err error) {
	var data convert.Result
	if c.Resume {
		var began runRecord
		began, err = readRun(c.Dir)
		data = began.Data
	} else {
		data, err = describe(context.Background(), c.Data)
	}
	if err != nil {
		return "", err
	}
	categories := data.Kind == sample.Categories
	switch {
	case c.Model == "" && categories:
		c.Model = model.FM
	case c.Model == "":
		c.Model = model.Softmax
	case model.OfCategories(c.Model) != categories && categories:
		return "", fmt.Errorf("--model %s: expected a model of categories, as %s has them: use --model %s or %s", c.Model, c.Data, model.Logistic, model.FM)
	case model.OfCategories(c.Model) != categories:
		return "", fmt.Errorf("--model %s: expected a model of numbers, as %s has them: use --model %s or %s", c.Model, c.Data, model.Softmax, model.MLP)
	}
	if categories && data.Classes > 2 {
		return "", fmt.Errorf("%s: expected 2 classes for --model %s, found %d: make two of them with --label-above of `master recordio convert`", c.Data, c.Model, data.Classes)
	}
	if data.Classes < 2 {
		return "", fmt.Errorf("%s: expected at least 2 classes, found %d: every record has the same label", c.Data, data.Classes)
	}
	return reference.DatasetLike(c.Model, data.Features), nil
}

// ErrOtherMeaning is in the error of a model and data whose labels or scaling differ.
var ErrOtherMeaning = errors.New("data was converted differently")

// sameMeaning refuses files whose records would be taken for something else by a model. Where the meaning is not known, it
// refuses nothing.
func sameMeaning(of convert.Meaning, modelPath string, files []string) error {
	if of == (convert.Meaning{}) {
		return nil
	}
	for _, file := range files {
		found, err := convert.MeaningOf(file)
		switch {
		case err != nil:
			return err
		case found == (convert.Meaning{}):
		case found.Labels != of.Labels:
			return fmt.Errorf("%s: %w: expected the labels of the data that %s was trained on, found others: convert all data at once, with --held-out for the records to measure on", file, ErrOtherMeaning, modelPath)
		case found.Scaling != of.Scaling:
			return fmt.Errorf("%s: %w: expected the scaling of the data that %s was trained on, found another: convert all data at once, with --held-out for the records to measure on, or both parts with --scaling none, or pixels with one --max-pixel", file, ErrOtherMeaning, modelPath)
		}
	}
	return nil
}
