// Package jsonstate encodes a state as a JSON object that begins with the number of its format.
package jsonstate

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
)

// Codec encodes the states of one type, whose JSON is an object.
type Codec[T any] struct {
	Format   int   // of encoded states
	MaxBytes int   // more than the size of any encoded state
	Newer    error // is wrapped for a newer format
	Damaged  error // is wrapped for other bytes
}

// Encode returns a state as JSON. Equal states have equal bytes.
func (c Codec[T]) Encode(state T) []byte {
	fields, err := json.Marshal(state)
	if err != nil {
		panic(err) // numbers are finite, and strings always encode
	}
	b := strconv.AppendInt([]byte(`{"format":`), int64(c.Format), 10)
	if len(fields) > len("{}") {
		b = append(b, ',')
	}
	return append(b, fields[1:]...)
}

// Decode reads an encoded state. It accepts only bytes that [Codec.Encode] writes.
func (c Codec[T]) Decode(b []byte) (state T, err error) {
	var none T
	if len(b) > c.MaxBytes {
		return none, fmt.Errorf("%w: expected at most %d bytes, found %d", c.Damaged, c.MaxBytes, len(b))
	}
	var of struct{ Format int }
	if err := json.Unmarshal(b, &of); err != nil {
		return none, fmt.Errorf("%w: %v", c.Damaged, err)
	}
	if of.Format > c.Format {
		return none, fmt.Errorf("%w: expected at most %d, found %d", c.Newer, c.Format, of.Format)
	}
	if err := json.Unmarshal(b, &state); err != nil {
		return none, fmt.Errorf("%w: %v", c.Damaged, err)
	}
	//guard:stored-state-strict
	if !bytes.Equal(c.Encode(state), b) {
		return none, fmt.Errorf("%w: expected the form that this version writes: unknown, repeated or reordered fields", c.Damaged)
	}
	return state, nil
}
