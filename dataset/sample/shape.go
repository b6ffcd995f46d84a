package sample

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Kind is what the features of a dataset are.
type Kind string

// The kinds of datasets.
const (
	Pixels     Kind = "pixels"     // whole numbers from 0 to 255, times a scale
	Numbers    Kind = "numbers"    // finite numbers of single precision, times a scale
	Categories Kind = "categories" // one category for each field
)

// Shape is what a record says about its dataset.
type Shape struct {
	Kind     Kind    `json:"kind"`
	Features int     `json:"features"` // of each record: numbers, or fields of categories
	Classes  int     `json:"classes"`  // labels are 0 to Classes-1; 0: not stated
	Scale    float32 `json:"scale"`    // feature i is value i times Scale; 1 for categories

	label int
}

// Describe reads the description in a record of any format. It checks the header and the length, not each value. An error wraps
// ErrMalformed.
func Describe(rec []byte) (Shape, error) {
	if len(rec) == 0 {
		return Shape{}, fmt.Errorf("%w: expected at least %d bytes, found an empty record", ErrMalformed, categoricalHeader)
	}
	switch rec[0] {
	case version, numericVersion:
		return describeNumbers(rec)
	case categoricalVersion:
		return describeCategories(rec)
	}
	return Shape{}, fmt.Errorf("%w: expected version 1, 2 or 3, found %d: not written by `master recordio convert`; the built-in trainers read only its shards",
		ErrMalformed, rec[0])
}

// Label is the label of a record of any format.
func Label(rec []byte) (int, error) {
	shape, err := Describe(rec)
	return shape.label, err
}

func describeNumbers(rec []byte) (Shape, error) {
	if len(rec) < HeaderSize {
		return Shape{}, fmt.Errorf("%w: expected at least %d bytes, found %d", ErrMalformed, HeaderSize, len(rec))
	}
	scale := math.Float32frombits(binary.LittleEndian.Uint32(rec[4:]))
	if f := float64(scale); math.IsNaN(f) || math.IsInf(f, 0) {
		return Shape{}, fmt.Errorf("%w: expected a finite scale, found %v", ErrMalformed, scale)
	}
	values := len(rec) - HeaderSize
	s := Shape{Kind: Pixels, Features: values, Scale: scale}
	if rec[0] == version {
		if rec[1]|rec[2]|rec[3] != 0 {
			return Shape{}, fmt.Errorf("%w: expected zeros in the reserved bytes, found % x", ErrMalformed, rec[1:4])
		}
		label := int64(binary.LittleEndian.Uint64(rec[8:]))
		if int64(int(label)) != label {
			return Shape{}, fmt.Errorf("%w: label %d does not fit in an int", ErrMalformed, label)
		}
		s.label = int(label)
		return s, nil
	}
	if rec[2]|rec[3] != 0 {
		return Shape{}, fmt.Errorf("%w: expected zeros in the reserved bytes, found % x", ErrMalformed, rec[2:4])
	}
	switch kind := rec[1]; {
	case kind == typeByte && values > 0:
	case kind == typeSingle && values > 0 && values%4 == 0:
		s.Kind, s.Features = Numbers, values/4
	case kind != typeByte && kind != typeSingle:
		return Shape{}, fmt.Errorf("%w: expected values of type 1 or 2, found %d", ErrMalformed, kind)
	default:
		return Shape{}, fmt.Errorf("%w: expected whole values of type %d, found %d bytes", ErrMalformed, kind, values)
	}
	label, classes := binary.LittleEndian.Uint32(rec[8:]), binary.LittleEndian.Uint32(rec[12:])
	if label >= classes || label > math.MaxInt32 || classes > math.MaxInt32 {
		return Shape{}, fmt.Errorf("%w: expected a label below the number of classes, found label %d of %d classes", ErrMalformed, label, classes)
	}
	s.label, s.Classes = int(label), int(classes)
	return s, nil
}

func describeCategories(rec []byte) (Shape, error) {
	if len(rec) < categoricalHeader {
		return Shape{}, fmt.Errorf("%w: expected at least %d bytes, found %d", ErrMalformed, categoricalHeader, len(rec))
	}
	classes, label, ids := binary.LittleEndian.Uint16(rec[2:]), binary.LittleEndian.Uint32(rec[4:]), len(rec)-categoricalHeader
	switch {
	case label > math.MaxInt32:
		return Shape{}, fmt.Errorf("%w: expected a label of at most %d, found %d", ErrMalformed, math.MaxInt32, label)
	case classes > 0 && label >= uint32(classes):
		return Shape{}, fmt.Errorf("%w: expected a label below the number of classes, found label %d of %d classes", ErrMalformed, label, classes)
	case ids != 8*int(rec[1]):
		return Shape{}, fmt.Errorf("%w: expected %d ids of 8 bytes each, found %d bytes", ErrMalformed, rec[1], ids)
	}
	return Shape{Kind: Categories, Features: int(rec[1]), Classes: int(classes), Scale: 1, label: int(label)}, nil
}
