// Package sample implements the record formats of converted datasets: [Sample], a vector of numbers with a label, and
// [Categorical], one category for each field with a label. The converters write them and the built-in trainers read them. RecordIO
// itself does not interpret records.
//
// Each record describes itself: its first byte says which format it has, its length says how many features, and the formats of
// today also say how many classes the dataset has. [Describe] reads this description. docs/formats/samples.md has the reasons.
//
// A sample is one record, little-endian. Version 3 is written today:
//
//	 0       1       2      4              8              12               16
//	+-------+-------+------+--------------+--------------+----------------+--------- - - -
//	| 3     | type  | 0  0 | scale (f32)  | label (u32)  | classes (u32)  | values
//	+-------+-------+------+--------------+--------------+----------------+--------- - - -
//	 version         reserved                                               to the end of the record
//
// The type is 1 for values of one unsigned byte (pixels) and 2 for values of four bytes (IEEE 754 single precision). Feature i is
// value i times the scale. The label is below the number of classes, and there is at least one value.
//
// Version 1 has bytes only and does not state the number of classes:
//
//	 0       1            4              8                      16
//	+-------+------------+--------------+----------------------+--------- - - -
//	| 1     | 0   0   0  | scale (f32)  | label (i64)          | pixels (u8 each)
//	+-------+------------+--------------+----------------------+--------- - - -
package sample

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

const (
	version        = 1
	numericVersion = 3
	// HeaderSize is the number of bytes of a record before its values.
	HeaderSize = 16
)

// The types of values in version 3.
const (
	typeByte   = 1
	typeSingle = 2
)

// ErrMalformed is wrapped by every error about a record.
var ErrMalformed = errors.New("not a sample")

// Sample is one labeled vector of numbers. Either Pixels or Numbers has the values.
type Sample struct {
	Label   int
	Classes int     // labels of the dataset are 0 to Classes-1; 0: not stated
	Scale   float32 // feature i is value i times Scale; finite
	Pixels  []byte
	Numbers []float32 // finite; if there are any, Pixels is not used
}

// Features is the number of values.
func (s *Sample) Features() int {
	if len(s.Numbers) > 0 {
		return len(s.Numbers)
	}
	return len(s.Pixels)
}

// AppendFeatures appends the features to dst and returns the longer slice.
func (s *Sample) AppendFeatures(dst []float32) []float32 {
	for _, number := range s.Numbers {
		dst = append(dst, number*s.Scale)
	}
	if len(s.Numbers) == 0 {
		for _, pixel := range s.Pixels {
			dst = append(dst, float32(pixel)*s.Scale)
		}
	}
	return dst
}

// Append appends the encoding of s to dst and returns the longer slice: version 3 if s states its classes, else version 1.
// Numbers need stated classes.
func Append(dst []byte, s Sample) []byte {
	if s.Classes == 0 {
		dst = append(dst, version, 0, 0, 0)
		dst = binary.LittleEndian.AppendUint32(dst, math.Float32bits(s.Scale))
		dst = binary.LittleEndian.AppendUint64(dst, uint64(int64(s.Label)))
		return append(dst, s.Pixels...)
	}
	kind := byte(typeByte)
	if len(s.Numbers) > 0 {
		kind = typeSingle
	}
	dst = append(dst, numericVersion, kind, 0, 0)
	dst = binary.LittleEndian.AppendUint32(dst, math.Float32bits(s.Scale))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(s.Label))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(s.Classes))
	if len(s.Numbers) == 0 {
		return append(dst, s.Pixels...)
	}
	for _, number := range s.Numbers {
		dst = binary.LittleEndian.AppendUint32(dst, math.Float32bits(number))
	}
	return dst
}

// Decode reads one record into s. The values are copied into the memory of s, which is reused when it is large enough, so that
// s stays valid when the reader overwrites rec. After an error s is unchanged.
func Decode(rec []byte, s *Sample) error {
	shape, err := Describe(rec)
	if err != nil {
		return err
	}
	if shape.Kind == Categories {
		return fmt.Errorf("%w of numbers: found categories: use --model logistic or --model fm", ErrMalformed)
	}
	values := rec[HeaderSize:]
	if shape.Kind == Numbers {
		for b := values; len(b) > 0; b = b[4:] {
			if bits := binary.LittleEndian.Uint32(b); bits&infinite == infinite {
				return fmt.Errorf("%w: feature %d: expected a finite number, found %v", ErrMalformed, (len(values)-len(b))/4, math.Float32frombits(bits))
			}
		}
	}
	s.Label, s.Classes, s.Scale = shape.label, shape.Classes, shape.Scale
	s.Pixels, s.Numbers = s.Pixels[:0], s.Numbers[:0]
	if shape.Kind == Pixels {
		s.Pixels = append(s.Pixels, values...)
		return nil
	}
	for ; len(values) > 0; values = values[4:] {
		s.Numbers = append(s.Numbers, math.Float32frombits(binary.LittleEndian.Uint32(values)))
	}
	return nil
}

// infinite has the bits of the exponent of infinities and NaNs.
const infinite = 0x7f800000
