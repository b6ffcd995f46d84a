package main

import (
	"iter"

	"trainmaster/dataset/sample"
)

// perceptron is a model in the memory of one trainer. Replace it by yours.
type perceptron struct {
	sample   sample.Sample
	features []float32
	weights  [][]float32 // by class
	records  int         // of the last task
}

// train learns the records of a task, and returns the share of mistakes.
func (p *perceptron) train(records iter.Seq2[[]byte, error]) (float64, error) {
	p.records = 0
	mistakes := 0
	for record, err := range records {
		if err != nil {
			return 0, err
		}
		if err := p.learn(record, &mistakes); err != nil {
			return 0, err
		}
		p.records++
	}
	return float64(mistakes) / float64(max(p.records, 1)), nil
}

// learn decodes a record, and counts a mistake if the model does not find its class.
func (p *perceptron) learn(record []byte, mistakes *int) error {
	if err := sample.Decode(record, &p.sample); err != nil {
		return err
	}
	p.features = p.sample.AppendFeatures(p.features[:0])
	for len(p.weights) <= p.sample.Label {
		p.weights = append(p.weights, make([]float32, len(p.features)))
	}
	best, found := float32(0), 0
	for class, weights := range p.weights {
		var score float32
		for i, feature := range p.features {
			score += weights[i] * feature
		}
		if class == 0 || score > best {
			best, found = score, class
		}
	}
	if found != p.sample.Label {
		*mistakes++
		for i, feature := range p.features {
			p.weights[p.sample.Label][i] += feature
			p.weights[found][i] -= feature
		}
	}
	return nil
}
