// Package sample has the record types of the example datasets: a small image (or any vector of bytes) with its label, and
// an example of categories, [Categorical]. The converters write them, the reference trainer reads them; RecordIO itself
// neither knows nor cares.
//
// One record is one sample, little-endian; an image is
//
//	 0       1            4              8                      16
//	+-------+------------+--------------+----------------------+--------- - - -
//	| 1     | 0   0   0  | scale (f32)  | label (i64)          | pixels (u8 each)
//	+-------+------------+--------------+----------------------+--------- - - -
//	 version  reserved                                           to the end of the record
//
// The feature i is Pixels[i]*Scale. Pixels stay the bytes of the source, and Scale is one over the largest value that
// the source can hold (1/16 for the digits, 1/255 for MNIST), so that every feature lies in [0, 1].
package sample

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

const (
	version = 1
	// HeaderSize is the number of bytes of a record before its pixels.
	HeaderSize = 16
)

// ErrMalformed is wrapped by every error of Decode.
var ErrMalformed = errors.New("not a sample")

// Sample is one labelled example.
type Sample struct {
	Label  int
	Scale  float32 // feature i is Pixels[i]*Scale; finite
	Pixels []byte
}

// Append appends the encoding of s to dst and returns the longer slice.
func Append(dst []byte, s Sample) []byte {
	dst = append(dst, version, 0, 0, 0)
	dst = binary.LittleEndian.AppendUint32(dst, math.Float32bits(s.Scale))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(int64(s.Label)))
	return append(dst, s.Pixels...)
}

// Decode reads one record into s. The pixels are copied into s.Pixels, whose memory is reused when it is large enough,
// so that s stays valid when the reader overwrites rec. After an error s is unchanged.
func Decode(rec []byte, s *Sample) error {
	if len(rec) < HeaderSize {
		return fmt.Errorf("%w: %d bytes, expected at least %d", ErrMalformed, len(rec), HeaderSize)
	}
	if rec[0] != version {
		return fmt.Errorf("%w: version %d, expected %d", ErrMalformed, rec[0], version)
	}
	if rec[1]|rec[2]|rec[3] != 0 {
		return fmt.Errorf("%w: reserved bytes % x, expected zeros", ErrMalformed, rec[1:4])
	}
	scale := math.Float32frombits(binary.LittleEndian.Uint32(rec[4:]))
	if f := float64(scale); math.IsNaN(f) || math.IsInf(f, 0) {
		return fmt.Errorf("%w: scale %v, expected a finite number", ErrMalformed, scale)
	}
	label := int64(binary.LittleEndian.Uint64(rec[8:]))
	if int64(int(label)) != label {
		return fmt.Errorf("%w: label %d does not fit in an int", ErrMalformed, label)
	}
	s.Label = int(label)
	s.Scale = scale
	s.Pixels = append(s.Pixels[:0], rec[HeaderSize:]...)
	return nil
}
