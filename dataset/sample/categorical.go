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
//	 0       1        2       4              8
//	+-------+--------+-------+--------------+--------- - - -
//	| 2     | fields | 0   0 | label (u32)  | ids (i64 each)
//	+-------+--------+-------+--------------+--------- - - -
//	 version           reserved               to the end of the record
type Categorical struct {
	Label int
	IDs   []int64 // of the categories, by field: see [CategoryID]
}

const (
	categoricalVersion = 2
	// MaxFields is the most categories of an example.
	MaxFields = 255
)

// CategoryID is the number of a category of a field, from 0: the field in the upper 16 bits, and in the others the lower 48
// of the 64-bit FNV-1a hash of the category's text. Nobody has to keep a table of the categories; of a million
// categories of one field two have the same number with a probability of 0.2 %.
func CategoryID(field int, text string) int64 {
	hash := fnv.New64a()
	hash.Write([]byte(text))
	return int64(field)<<48 | int64(hash.Sum64()&(1<<48-1))
}

// AppendCategorical appends the encoding of c to dst and returns the longer slice. c has at most MaxFields ids, and a label
// from 0 to 2^31-1.
func AppendCategorical(dst []byte, c Categorical) []byte {
	dst = append(dst, categoricalVersion, byte(len(c.IDs)), 0, 0)
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
	if len(rec) < categoricalHeader {
		return fmt.Errorf("%w: %d bytes, expected at least %d", ErrMalformed, len(rec), categoricalHeader)
	}
	if rec[0] != categoricalVersion {
		return fmt.Errorf("%w: version %d, expected %d: categories", ErrMalformed, rec[0], categoricalVersion)
	}
	if rec[2]|rec[3] != 0 {
		return fmt.Errorf("%w: reserved bytes % x, expected zeros", ErrMalformed, rec[2:4])
	}
	label, ids := binary.LittleEndian.Uint32(rec[4:]), rec[categoricalHeader:]
	if label > math.MaxInt32 {
		return fmt.Errorf("%w: label %d, expected at most %d", ErrMalformed, label, math.MaxInt32)
	}
	if len(ids) != 8*int(rec[1]) {
		return fmt.Errorf("%w: %d bytes of ids, expected %d of 8 bytes each", ErrMalformed, len(ids), rec[1])
	}
	c.Label, c.IDs = int(label), c.IDs[:0]
	for ; len(ids) > 0; ids = ids[8:] {
		c.IDs = append(c.IDs, int64(binary.LittleEndian.Uint64(ids)))
	}
	return nil
}
