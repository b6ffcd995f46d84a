package local

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"trainmaster/dataset"
	"trainmaster/dataset/convert"
	"trainmaster/dataset/sample"
	"trainmaster/recordio"
	"trainmaster/testdata"
	"trainmaster/trainer/model"
	"trainmaster/trainer/reference"
)

// splitSeed determines the held-out records. It is fixed, so all runs measure the accuracy on the same records.
const (
	splitSeed     = 20_240_229
	heldOut       = 0.2
	digitsShards  = 4
	digitsRecords = 20 // in a chunk
	mnistShards   = 8
	mnistRecords  = 250

	flightsShards  = 4
	flightsRecords = 200
	lateAbove      = 15.0 // minutes
)

// evaluated returns the held-out files on which the master evaluates the model; none of own trainers.
func (j *Job) evaluated() []string {
	if len(j.config.Command) > 0 {
		return nil
	}
	return j.data.Test.Paths
}

// prepare writes the RecordIO shards.
func (j *Job) prepare(ctx context.Context) (err error) {
	switch {
	case dataset.IsRange(j.config.Data):
		j.data.Train.Paths = []string{j.config.Data}
		return nil
	case j.config.Data != "" && len(j.config.Command) > 0:
		j.data.Train.Paths, j.data.Test.Paths, err = convert.Resolve(ctx, j.config.Data)
		return err
	case j.config.Data != "":
		j.data, err = describe(ctx, j.config.Data)
		return err
	}
	prefix := j.path("data", j.config.Dataset)
	if j.config.Dataset != model.MNIST {
		j.data, err = ConvertSample(ctx, j.config.Dataset, convert.Options{Prefix: prefix})
		return err
	}
	options := convert.Options{Prefix: prefix, Shards: mnistShards, RecordsPerChunk: mnistRecords, Compression: recordio.Snappy, Seed: splitSeed}
	if j.data, err = j.convertMNIST(ctx, "train", options); err != nil {
		return err
	}
	options.Prefix, options.Shards = options.Prefix+"-test", 1
	test, err := j.convertMNIST(ctx, "t10k", options)
	j.data.Test = test.Train
	return err
}

// Samples are the datasets that the binary contains.
var Samples = []string{model.Digits, model.Flights}

// ConvertSample writes one of [Samples] as shards to o.Prefix, with the split and the scaling of a run. Other options are set here, except
// Repeat.
func ConvertSample(ctx context.Context, name string, o convert.Options) (convert.Result, error) {
	o.Compression, o.HeldOut, o.Seed = recordio.Snappy, heldOut, splitSeed
	if name == model.Flights {
		o.Shards, o.RecordsPerChunk, o.LabelAbove = flightsShards, flightsRecords, new(lateAbove)
		return convert.Categorical(ctx, bytes.NewReader(testdata.Flights), o)
	}
	o.Shards, o.RecordsPerChunk = digitsShards, digitsRecords
	return convert.CSV(ctx, bytes.NewReader(testdata.Digits), o)
}

func (j *Job) convertMNIST(ctx context.Context, part string, options convert.Options) (convert.Result, error) {
	var open [2]*os.File
	for i, name := range []string{part + "-images-idx3-ubyte", part + "-labels-idx1-ubyte"} {
		f, err := openEither(filepath.Join(j.config.MNIST, name))
		if err != nil {
			return convert.Result{}, err
		}
		defer f.Close()
		open[i] = f
	}
	return convert.IDX(ctx, open[0], open[1], options)
}

// openEither opens a file, or the file with the suffix .gz.
func openEither(path string) (*os.File, error) {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		if g, gzErr := os.Open(path + ".gz"); gzErr == nil {
			return g, nil
		}
		return nil, fmt.Errorf("%w: expected an idx file of MNIST, or its .gz: fetch them with `make data`", err)
	}
	return f, err
}

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
