package reference

import (
	"cmp"
	"fmt"

	"trainmaster/pserver/optimizer"
	"trainmaster/trainer/model"
	"trainmaster/trainer/params"
)

// Recipe is the training settings of a Worker. Zero values are chosen by the shape of the data.
type Recipe struct {
	Hidden    int // units of the hidden layer
	Rank      int // factors of a category
	BatchSize int // records of a mini-batch
	Optimizer params.Optimizer
	Exchange  Exchange
}

// DatasetLike returns the dataset of model.RecipeFor with the most similar shape.
func DatasetLike(kind string, inputs int) string {
	switch {
	case model.OfCategories(kind):
		return model.Flights
	case inputs > 64:
		return model.MNIST
	}
	return model.Digits
}

// Complete checks the given settings, and sets the others to the values of model.RecipeFor for a similar dataset, if there is one.
func (r Recipe) Complete(kind, dataset string, synchronous bool) (Recipe, error) {
	if err := r.Exchange.Check(synchronous); err != nil {
		return Recipe{}, err
	}
	known, err := model.RecipeFor(kind, dataset, synchronous)
	if err != nil {
		return Recipe{}, err
	}
	r.Hidden, r.Rank, r.BatchSize = cmp.Or(r.Hidden, known.Hidden), cmp.Or(r.Rank, known.Rank), cmp.Or(r.BatchSize, known.BatchSize)
	o := &r.Optimizer
	if known.Optimizer != "" {
		if o.Kind == "" {
			o.Kind = known.Optimizer
		}
		switch o.Kind {
		case known.Optimizer:
			o.LearningRate = cmp.Or(o.LearningRate, float32(known.LearningRate))
		case params.SGD, params.Momentum, params.Nesterov: // the others have rates of their own, which do here
			if o.LearningRate == 0 {
				return Recipe{}, &optimizer.FieldError{Kind: o.Kind, Setting: "learning-rate", Value: "0", Expected: fmt.Sprintf(
					"a number above 0, since none is known for %s on %s with --optimizer %s; or take %s", kind, dataset, o.Kind, known.Optimizer)}
			}
		}
		return r, params.CheckOptimizer(o, model.OfCategories(kind))
	}
	switch o.Kind {
	case params.SGD, params.Momentum, params.Nesterov:
		// The rates without momentum are for asynchronous training, the rates with momentum for synchronous training.
		if known, err = model.RecipeFor(kind, dataset, o.Kind != params.SGD); err != nil {
			return Recipe{}, err
		}
		o.LearningRate, o.Momentum = cmp.Or(o.LearningRate, float32(known.LearningRate)), cmp.Or(o.Momentum, float32(known.Momentum))
	case "":
		if o.LearningRate == 0 {
			o.LearningRate, o.Momentum = float32(known.LearningRate), float32(known.Momentum)
		}
		if o.Kind = params.SGD; o.Momentum != 0 {
			o.Kind = params.Momentum
		}
	}
	return r, params.CheckOptimizer(o, model.OfCategories(kind))
}
