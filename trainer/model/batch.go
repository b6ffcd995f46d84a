package model

import (
	"fmt"

	"trainmaster/dataset/sample"
)

// Batch is the features and labels of some records, all as wide as the Model that made it expects. It is filled by Append,
// used, and emptied by Reset to be filled again without allocating.
type Batch struct {
	inputs, classes int
	features        []float32 // [len(labels), inputs]
	labels          []int
}

func newBatch(inputs, classes, capacity int) *Batch {
	return &Batch{
		inputs:   inputs,
		classes:  classes,
		features: make([]float32, 0, inputs*capacity),
		labels:   make([]int, 0, capacity),
	}
}

// Len is the number of records.
func (b *Batch) Len() int { return len(b.labels) }

// Reset empties the batch and keeps its memory.
func (b *Batch) Reset() {
	b.features = b.features[:0]
	b.labels = b.labels[:0]
}

// Append copies one sample into the batch. A sample of another width, or with a label that is not a class, is refused
// and leaves the batch as it was.
func (b *Batch) Append(s sample.Sample) error {
	if len(s.Pixels) != b.inputs {
		return fmt.Errorf("record has %d features, expected %d: the data does not fit this model", len(s.Pixels), b.inputs)
	}
	if s.Label < 0 || s.Label >= b.classes {
		return fmt.Errorf("record has label %d, expected 0 to %d: the data does not fit this model", s.Label, b.classes-1)
	}
	for _, pixel := range s.Pixels {
		b.features = append(b.features, float32(pixel)*s.Scale)
	}
	b.labels = append(b.labels, s.Label)
	return nil
}
