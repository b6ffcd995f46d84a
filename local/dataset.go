package local

import (
	"context"
	"errors"
	"fmt"

	"trainmaster/dataset/convert"
	"trainmaster/dataset/sample"
	"trainmaster/trainer/model"
	"trainmaster/trainer/reference"
)

// describe describes a dataset that convert.Resolve finds.
func describe(ctx context.Context, name string) (convert.Result, error) {
	train, test, err := convert.Resolve(ctx, name)
	if err != nil {
		return convert.Result{}, err
	}
	return convert.DescribeFiles(ctx, train, test)
}

// takeShape chooses a model for the user's shards if none is set, and refuses a model of other features. It returns the dataset
// of model.RecipeFor whose settings are taken.
func (c *Config) takeShape() (like string, err error) {
	var data convert.Result
	if c.Resume {
		var began savedRun
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
		return "", fmt.Errorf("%s: expected at least 2 classes, found %d: all records have the same label", c.Data, data.Classes)
	}
	return reference.DatasetLike(c.Model, data.Features), nil
}

// ErrOtherMeaning is in the error of a model and data whose labels or scaling differ.
var ErrOtherMeaning = errors.New("data was converted differently")

// sameMeaning returns an error if files have other labels or another scaling than the training data of the model. If either is not
// known, it returns nil.
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
			return fmt.Errorf("%s: %w: expected the labels of the training data of %s, found others: convert all data together, with --held-out for the evaluation, or the later data with --like", file, ErrOtherMeaning, modelPath)
		case found.Scaling != of.Scaling:
			return fmt.Errorf("%s: %w: expected the scaling of the training data of %s, found another: convert all data together, with --held-out for the evaluation, or the later data with --like", file, ErrOtherMeaning, modelPath)
		}
	}
	return nil
}
