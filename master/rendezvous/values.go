package rendezvous

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

// ValuesPrefix is the prefix of the keys of values: /ring_values/GENERATION/KEY.
const ValuesPrefix = "/ring_values/"

// The limits of the values of the members.
const (
	MaxValue      = 24 << 10 // bytes; a message of the master has at most 64 KiB
	MaxValueKey   = 512      // bytes
	MaxValues     = 4096
	MaxValueBytes = 16 << 20 // of all values

	MaxValueInstances = 4 * MaxMembers // that change one value

	KeptGenerations = 4 // with values, the current one included
)

// ValuesVersion is the version of the format of a value.
const ValuesVersion = 1

// Errors of changes of values.
var (
	ErrBadValue      = errors.New("invalid operation on a value")
	ErrTooManyValues = errors.New("too many values")
)

// Value is a value that members share, with the last change of each instance, which makes a repetition harmless.
type Value struct {
	Format  int               `json:"format"`
	Content []byte            `json:"value"`
	Absent  bool              `json:"absent,omitempty"` // it was deleted: only the changes are kept
	Last    map[string]Change `json:"last,omitempty"`   // by instance
}

// Change is a change and its reply. It has no content: thousands of instances can change a value, which etcd limits to 1.5 MiB.
type Change struct {
	Sequence uint64 `json:"sequence"`
	Found    bool   `json:"found,omitempty"` // of a compare-and-set: the value is the desired one
	//guard:ring-change-without-content
	Content []byte `json:"-"`
	Number  int64  `json:"number,omitempty"`
}

// DecodeValue decodes a stored value.
func DecodeValue(b []byte) (v Value, err error) {
	if err := json.Unmarshal(b, &v); err != nil {
		return v, fmt.Errorf("a value of the ring: %w", err)
	}
	if v.Format != ValuesVersion {
		return v, fmt.Errorf("a value of the ring: expected format %d, found %d: start a master of a newer version", ValuesVersion, v.Format)
	}
	return v, nil
}

// Encode encodes a value.
func (v Value) Encode() []byte {
	v.Format = ValuesVersion
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // all fields have a representation
	}
	return b
}

// ValuesKey returns the key of a value below the job.
func ValuesKey(generation uint64, key string) string {
	return ValuesPrefix + strconv.FormatUint(generation, 10) + "/" + key
}

// ParseValuesKey is the inverse of ValuesKey.
func ParseValuesKey(path string) (generation uint64, key string, err error) {
	number, key, ok := strings.Cut(strings.TrimPrefix(path, ValuesPrefix), "/")
	if generation, err = strconv.ParseUint(number, 10, 64); err != nil || !ok {
		return 0, "", fmt.Errorf("expected %sGENERATION/KEY, found %q", ValuesPrefix, path)
	}
	return generation, key, nil
}

// CheckValueKey returns an error for a key that is not 1 to MaxValueKey bytes of text.
func CheckValueKey(key string) error {
	if key == "" || len(key) > MaxValueKey || !utf8.ValidString(key) || strings.ContainsRune(key, 0) {
		return fmt.Errorf("%w: key: expected 1 to %d bytes of UTF-8 without zero bytes, found %q", ErrBadValue, MaxValueKey, Clip(key))
	}
	return nil
}

// Apply applies a change of an instance. It returns the next value and the reply. next is v itself if the change was applied before. v is the
// zero Value if there is none.
func (v Value) Apply(instance string, sequence uint64, op Operation) (next Value, reply Change, isNew bool, err error) {
	//guard:ring-change-repeated
	if last, ok := v.Last[instance]; ok && sequence <= last.Sequence {
		if sequence < last.Sequence {
			return v, reply, false, fmt.Errorf("%w: sequence: expected more than %d, the last change of this member, found %d", ErrBadValue, last.Sequence, sequence)
		}
		if o, ok := op.(CompareSetValue); ok {
			last.Content = o.content(v, last.Found)
		}
		return v, last, false, nil
	}
	//guard:ring-value-instances
	if len(v.Last) >= MaxValueInstances && v.Last[instance].Sequence == 0 {
		return v, reply, false, fmt.Errorf("%w: expected changes of at most %d members and their restarts, found %d", ErrTooManyValues, MaxValueInstances, len(v.Last))
	}
	exists := v.exists()
	next = Value{Format: ValuesVersion, Content: v.Content, Absent: v.Absent, Last: map[string]Change{}}
	for k, c := range v.Last {
		next.Last[k] = c
	}
	if reply, err = op.change(&next, exists); err != nil {
		return v, reply, false, err
	}
	if len(next.Content) > MaxValue {
		return v, reply, false, fmt.Errorf("%w: expected at most %d bytes, found %d", ErrTooManyValues, MaxValue, len(next.Content))
	}
	reply.Sequence = sequence
	next.Last[instance] = reply
	return next, reply, true, nil
}

func (v Value) exists() bool { return v.Last != nil && !v.Absent }

// Operation is a change of a value.
type Operation interface {
	change(next *Value, exists bool) (Change, error)
}

// SetValue replaces a value.
type SetValue struct{ Content []byte }

func (o SetValue) change(next *Value, _ bool) (Change, error) {
	next.Content, next.Absent = o.Content, false
	return Change{}, nil
}

// AddValue adds to a decimal number.
type AddValue struct{ Amount int64 }

func (o AddValue) change(next *Value, exists bool) (c Change, err error) {
	if exists {
		if c.Number, err = strconv.ParseInt(string(next.Content), 10, 64); err != nil {
			return c, fmt.Errorf("%w: add: expected a decimal number as the value, found %q", ErrBadValue, Clip(string(next.Content)))
		}
	}
	if o.Amount > 0 && c.Number > math.MaxInt64-o.Amount || o.Amount < 0 && c.Number < math.MinInt64-o.Amount {
		return c, fmt.Errorf("%w: add: the sum of %d and %d does not fit into 64 bits", ErrBadValue, c.Number, o.Amount)
	}
	c.Number += o.Amount
	next.Content, next.Absent = strconv.AppendInt(nil, c.Number, 10), false
	return c, nil
}

// CompareSetValue replaces a value that is as expected.
type CompareSetValue struct{ Expected, Desired []byte }

func (o CompareSetValue) change(next *Value, exists bool) (Change, error) {
	isDesired := exists && bytes.Equal(next.Content, o.Expected) || !exists && len(o.Expected) == 0
	if isDesired {
		next.Content, next.Absent = o.Desired, false
	}
	return Change{Found: isDesired, Content: o.content(*next, isDesired)}, nil
}

// content returns the content of the reply. A repetition without effect has the present value, which can be newer than the value in the lost reply.
func (o CompareSetValue) content(v Value, isDesired bool) []byte {
	switch {
	//guard:repeated-compare-and-set-had-effect
	case isDesired:
		return o.Desired
	case v.exists():
		return v.Content
	}
	return o.Expected
}

// DeleteValue removes a value.
type DeleteValue struct{}

func (DeleteValue) change(next *Value, exists bool) (Change, error) {
	next.Content, next.Absent = nil, true
	return Change{Found: exists}, nil
}
