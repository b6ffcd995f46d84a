package sample

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math"
)

// Categorical is an example that is described by categories, one of each field: a click, or a flight.
//
// One record is one example, little-endian:
//
//	 0       1        2                4              8
//	+-------+--------+----------------+--------------+--------- - - -
//	| 2     | fields | classes (u16)  | label (u32)  | ids (i64 each)
//	+-------+--------+----------------+--------------+--------- - - -
//	 version                                          to the end of the record
//
// The number of classes is 0 in older records, and in datasets with more than 65,535 classes.
type Categorical struct {
	Label   int
	Classes int     // labels of the dataset are 0 to Classes-1; 0: not stated
	IDs     []int64 // of the categories, by field: see [CategoryID]
}

const (
	categoricalVersion = 2
	// MaxFields is the most categories of an example.
	MaxFields = 255
)

// CategoryID is the number of a category of a field, from 0: the field in the upper 16 bits, and in the others the lower 48 of
// the 64-bit FNV-1a hash of the category's text. No table of the categories is needed. Of a million categories of one field
// two have the same number with a probability of 0.2 %.
func CategoryID(field int, text string) int64 {
	hash := fnv.New64a()
	hash.Write([]byte(text))
	return int64(field)<<48 | int64(hash.Sum64()&(1<<48-1))
}

// AppendCategorical appends the encoding of c to dst and returns the longer slice. c has at most MaxFields ids, and a label
// from 0 to 2^31-1.
func AppendCategorical(dst []byte, c Categorical) []byte {
	classes := c.Classes
	if classes > math.MaxUint16 {
		classes = 0
	}
	dst = append(dst, categoricalVersion, byte(len(c.IDs)))
	dst = binary.LittleEndian.AppendUint16(dst, uint16(classes))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(c.Label))
	for _, id := range c.IDs {
		dst = binary.LittleEndian.AppendUint64(dst, uint64(id))
	}
	return dst
}

const categoricalHeader = 8

// DecodeCategorical reads one record into c. The memory of c.IDs is reused when it is large enough. After an error c is
// unchanged.
func DecodeCategorical(rec []byte, c *Categorical) error {
	shape, err := Describe(rec)
	if err != nil {
		return err
	}
	if shape.Kind != Categories {
		return fmt.Errorf("%w of categories: found %s: use --model softmax or --model mlp", ErrMalformed, shape.Kind)
	}
	c.Label, c.Classes, c.IDs = shape.label, shape.Classes, c.IDs[:0]
	for ids := rec[categoricalHeader:]; len(ids) > 0; ids = ids[8:] {
		c.IDs = append(c.IDs, int64(binary.LittleEndian.Uint64(ids)))
	}
	return nil
}
