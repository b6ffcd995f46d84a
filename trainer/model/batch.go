package model

import (
	"fmt"

	"trainmaster/dataset/sample"
)

// Batch is the features and labels of some records, all as wide as the Model that made it expects. It is filled by Append,
// used, and emptied by Reset to be filled again without allocating.
type Batch struct {
	inputs, classes int
	labels          []int
	features        []float32   // [len(labels), inputs], of images
	categories      *categories // nil: images
	image           sample.Sample
	example         sample.Categorical
}

// categories are the distinct categories of a batch.
type categories struct {
	ids   []int64
	rowOf map[int64]int // index in ids
	rows  []int         // [len(labels), inputs]
}

func newBatch(inputs, classes, capacity int) *Batch {
	return &Batch{
		inputs:   inputs,
		classes:  classes,
		features: make([]float32, 0, inputs*capacity),
		labels:   make([]int, 0, capacity),
	}
}

func newCategoryBatch(fields, capacity int) *Batch {
	return &Batch{
		inputs:     fields,
		classes:    2,
		categories: &categories{rowOf: make(map[int64]int, fields*capacity), rows: make([]int, 0, fields*capacity)},
		labels:     make([]int, 0, capacity),
	}
}

// Len is the number of records.
func (b *Batch) Len() int { return len(b.labels) }

// Categories are the numbers of the categories that occur, each once, in the order of their first occurrence. They are
// valid until the batch changes.
func (b *Batch) Categories() []int64 {
	if b.categories == nil {
		return nil
	}
	return b.categories.ids
}

// rowsOf returns the indices of a record's categories in Categories.
func (b *Batch) rowsOf(record int) []int {
	return b.categories.rows[record*b.inputs : (record+1)*b.inputs]
}

// Labels returns the labels of the records. They are valid until the batch changes.
func (b *Batch) Labels() []int { return b.labels }

// Reset empties the batch and keeps its memory.
func (b *Batch) Reset() {
	b.features = b.features[:0]
	b.labels = b.labels[:0]
	if c := b.categories; c != nil {
		c.ids, c.rows = c.ids[:0], c.rows[:0]
		clear(c.rowOf)
	}
}

// Append reads a record of package sample, of the kind of the model. A record that does not fit the model is
// refused and leaves the batch as it was.
func (b *Batch) Append(record []byte) error {
	if b.categories != nil {
		if err := sample.DecodeCategorical(record, &b.example); err != nil {
			return err
		}
		return b.AppendExample(b.example)
	}
	if err := sample.Decode(record, &b.image); err != nil {
		return err
	}
	return b.AppendImage(b.image)
}

// AppendImage copies a vector of numbers, such as an image, into the batch.
func (b *Batch) AppendImage(s sample.Sample) error {
	if err := b.admit(s.Features(), "features", s.Label); err != nil {
		return err
	}
	b.features = s.AppendFeatures(b.features)
	b.labels = append(b.labels, s.Label)
	return nil
}

// AppendExample copies an example into the batch.
func (b *Batch) AppendExample(e sample.Categorical) error {
	if err := b.admit(len(e.IDs), "categories", e.Label); err != nil {
		return err
	}
	c := b.categories
	for _, id := range e.IDs {
		row, known := c.rowOf[id]
		if !known {
			row = len(c.ids)
			c.rowOf[id] = row
			c.ids = append(c.ids, id)
		}
		c.rows = append(c.rows, row)
	}
	b.labels = append(b.labels, e.Label)
	return nil
}

func (b *Batch) admit(width int, what string, label int) error {
	if width != b.inputs {
		return fmt.Errorf("record has %d %s, expected %d: the data does not fit this model", width, what, b.inputs)
	}
	if label >= 0 && label < b.classes {
		return nil
	}
	action := ""
	switch {
	case b.categories != nil:
		action = "; models of categories have two classes: see --label-above of `master recordio convert`"
	case label > 0:
		action = fmt.Sprintf(": start with --classes %d or more", label+1)
	}
	return fmt.Errorf("record has label %d, expected 0 to %d: the data does not fit this model%s", label, b.classes-1, action)
}
