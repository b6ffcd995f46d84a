package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
)

// ErrRecursive reports that a connection described a type that contains itself. gob decodes such a value, even an
// ignored one, with a stack as deep as the value: a message of a few megabytes ends the process.
var ErrRecursive = errors.New("recursive type")

// ErrMalformed says that a stream is none of gob.
var ErrMalformed = errors.New("malformed message")

const (
	maxTypes     = 128     // a connection describes; all messages of this package together have less than half
	maxTypeBytes = 4 << 10 // of one description
	firstOwnType = 64      // lower ids are gob's own types, which hold nothing
)

// types records the types that a gob stream described, and the types that each of them contains.
//
// A description is gob's wireType (encoding/gob, "Types and Values"): a struct of one of
//
//	ArrayT  {CommonType, Elem, Len}     SliceT {CommonType, Elem}
//	StructT {CommonType, []{Name, Id}}  MapT   {CommonType, Key, Elem}
//
// or a CommonType {Name, Id} alone, for a type that encodes itself. Field numbers are deltas; 0 ends a struct.
type types struct {
	held  map[int][]int
	safe  map[int]bool     // checked, with all contained types
	names map[int][]string // of the fields of structs
	last  int              // type of the last value

	described []byte // the descriptions, as they came
}

func newTypes() types {
	return types{held: map[int][]int{}, safe: map[int]bool{}, names: map[int][]string{}}
}

// describe takes in a description, without the id that it begins with.
func (t *types) describe(id int, description []byte) error {
	switch {
	case len(t.held) == maxTypes || len(description) > maxTypeBytes:
		return fmt.Errorf("%w: type %d of this connection in %d bytes, at most %d types of %d bytes are taken", ErrTooLarge, len(t.held)+1, len(description), maxTypes, maxTypeBytes)
	case t.held[id] != nil:
		return fmt.Errorf("%w: type %d is described twice", ErrMalformed, id)
	}
	r := typeReader{description}
	held, names := []int{}, []string(nil)
	err := r.fields(func(kind int) error {
		return r.fields(func(field int) error {
			switch {
			case field == 0: // CommonType
				return r.fields(r.named)
			case kind == arrayType && field == 2: // Len
				_, err := r.int()
				return err
			case kind == structType:
				return r.list(func() error {
					return r.fields(func(field int) error {
						if field == 0 {
							name, err := r.text()
							names = append(names, name)
							return err
						}
						return r.id(&held)
					})
				})
			}
			return r.id(&held)
		})
	})
	if err != nil {
		return fmt.Errorf("%w: description of type %d: %w", ErrMalformed, id, err)
	}
	t.held[id], t.names[id] = held, names
	return nil
}

// The fields of wireType whose own fields are not all ids.
const (
	arrayType  = 0
	structType = 2
)

// check refuses a value of a type that contains itself or was not described.
func (t *types) check(id int) error { return t.walk(id, nil) }

func (t *types) walk(id int, within []int) error {
	if id < firstOwnType || t.safe[id] {
		return nil
	}
	held, known := t.held[id]
	switch {
	case !known:
		return fmt.Errorf("%w: type %d was not described", ErrMalformed, id)
	case slices.Contains(within, id):
		return fmt.Errorf("%w: type %d", ErrRecursive, id)
	}
	within = append(within, id)
	for _, h := range held {
		if err := t.walk(h, within); err != nil {
			return err
		}
	}
	t.safe[id] = true
	return nil
}

// typeReader reads gob's numbers and structs.
type typeReader struct{ b []byte }

var errShort = errors.New("it ends too early")

func (r *typeReader) uint() (uint64, error) {
	if len(r.b) == 0 {
		return 0, errShort
	}
	first := r.b[0]
	if first < 0x80 {
		r.b = r.b[1:]
		return uint64(first), nil
	}
	n := -int(int8(first))
	if n > 8 || len(r.b) < 1+n {
		return 0, errShort
	}
	var whole [8]byte
	copy(whole[8-n:], r.b[1:1+n])
	r.b = r.b[1+n:]
	return binary.BigEndian.Uint64(whole[:]), nil
}

// int reads a number with its sign in the lowest bit.
func (r *typeReader) int() (int, error) {
	u, err := r.uint()
	if u&1 != 0 {
		return int(^(u >> 1)), err
	}
	return int(u >> 1), err
}

// fields calls value with the number of each field in the message.
func (r *typeReader) fields(value func(field int) error) error {
	for field := -1; ; {
		delta, err := r.uint()
		if err != nil || delta == 0 {
			return err
		}
		if delta > 16 {
			return fmt.Errorf("field %d", delta)
		}
		field += int(delta)
		if err := value(field); err != nil {
			return err
		}
	}
}

func (r *typeReader) list(element func() error) error {
	n, err := r.uint()
	for ; err == nil && n > 0; n-- {
		err = element()
	}
	return err
}

// named is a field of a struct {Name string, Id int}.
func (r *typeReader) named(field int) error {
	if field > 0 {
		_, err := r.int()
		return err
	}
	_, err := r.text()
	return err
}

func (r *typeReader) text() (string, error) {
	n, err := r.uint()
	if err == nil && n > uint64(len(r.b)) {
		err = errShort
	}
	if err != nil {
		return "", err
	}
	text := string(r.b[:n])
	r.b = r.b[n:]
	return text, nil
}

func (r *typeReader) id(held *[]int) error {
	id, err := r.int()
	*held = append(*held, id)
	return err
}

// take looks at a message, whose length is in its first bytes.
func (t *types) take(message []byte, length int) error {
	if len(message) == length {
		return nil
	}
	r := typeReader{message[length:]}
	id, err := r.int()
	switch {
	case err != nil:
		return fmt.Errorf("%w: id of a type: %w", ErrMalformed, err)
	case id < 0:
		if err := t.describe(-id, r.b); err != nil {
			return err
		}
		t.described = append(t.described, message...)
		return nil
	}
	t.last = id
	return t.check(id)
}
