package strategy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
)

// Format is the format of an encoded history.
const Format = 1

// ErrDamaged is returned for bytes that are no history of this or an earlier format.
var ErrDamaged = errors.New("damaged history of a strategy")

type encoded struct {
	Format int `json:"format"`
	History
}

// Encode returns the history as JSON. Equal histories have equal bytes. It is smaller than MaxBytes.
func (h History) Encode() []byte {
	b, err := json.Marshal(encoded{Format, h})
	if err != nil {
		panic(err) // all numbers are finite
	}
	return b
}

// DecodeHistory reads an encoded history. It accepts only bytes that [History.Encode] writes.
func DecodeHistory(b []byte) (History, error) {
	if len(b) > MaxBytes {
		return History{}, fmt.Errorf("%w: expected at most %d bytes, found %d", ErrDamaged, MaxBytes, len(b))
	}
	var e encoded
	if err := json.Unmarshal(b, &e); err != nil {
		return History{}, fmt.Errorf("%w: %v", ErrDamaged, err)
	}
	if e.Format > Format {
		return History{}, fmt.Errorf("%w: format: expected at most %d, found %d", ErrDamaged, Format, e.Format)
	}
	//guard:strategy-history-strict
	if e.Format != Format || !bytes.Equal(e.Encode(), b) {
		return History{}, fmt.Errorf("%w: expected the form that this version writes", ErrDamaged)
	}
	for name, v := range e.Parameters {
		if v.Reductions < 0 || v.Since < 0 {
			return History{}, fmt.Errorf("%w: %s: expected counts from 0, found %d and %d", ErrDamaged, name, v.Reductions, v.Since)
		}
	}
	return e.History, nil
}
