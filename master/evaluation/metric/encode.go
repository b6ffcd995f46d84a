package metric

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/bits"
	"slices"
)

// MaxBytes is more than the encoded size of any Set: 64 names and sums of 350 bytes, and 65,536 counts of 9 bytes.
const MaxBytes = 1 << 20

// version is the first byte of the encoded form.
const version = 1

// Errors of Decode.
var (
	ErrNewer   = errors.New("metrics of a newer version")
	ErrDamaged = errors.New("damaged metrics")
)

// Encode returns the metrics as bytes. Equal sets have equal bytes.
func (s *Set) Encode() []byte {
	b := binary.AppendUvarint([]byte{version}, uint64(len(s.metrics)))
	for _, name := range slices.Sorted(maps.Keys(s.metrics)) {
		m := s.metrics[name]
		b = append(b, byte(len(name)))
		b = append(b, name...)
		b = append(b, byte(m.kind))
		switch m.kind {
		case KindSum, KindMean:
			b = m.total.appendTo(binary.AppendUvarint(b, uint64(m.count)))
		case KindConfusion:
			b = appendCells(append(b, byte(m.classes)), m.cells)
		case KindHistogram:
			b = appendCells(b, m.cells)
		}
	}
	return b
}

// MergeEncoded returns the merge of two encoded sets. No bytes are an empty set.
func MergeEncoded(merged, more []byte) ([]byte, error) {
	var total Set
	for _, b := range [][]byte{merged, more} {
		if len(b) == 0 {
			continue
		}
		s, err := Decode(b)
		if err == nil {
			err = total.Merge(s)
		}
		if err != nil {
			return nil, err
		}
	}
	return total.Encode(), nil
}

// appendTo writes the sign: 0 for zero, 1 for a positive and 2 for a negative sum. Unless it is zero, three fields follow: the number of
// zero limbs below the lowest limb, the number of limbs, and the limbs of the absolute value.
func (a *Accumulator) appendTo(b []byte) []byte {
	m, sign := a.magnitude()
	if sign == 0 {
		return append(b, 0)
	}
	first, end := 0, (bitLen(&m)+limbBits-1)/limbBits
	for m[first] == 0 {
		first++
	}
	b = append(b, byte(1+(1-sign)/2), byte(first), byte(end-first))
	for _, l := range m[first:end] {
		b = binary.LittleEndian.AppendUint32(b, l)
	}
	return b
}

// appendCells writes the number of counts above 0 and, for each, the number of zeros before it and the count.
func appendCells(b []byte, cells []int64) []byte {
	used := 0
	for _, n := range cells {
		if n > 0 {
			used++
		}
	}
	b = binary.AppendUvarint(b, uint64(used))
	gap := uint64(0)
	for _, n := range cells {
		if n == 0 {
			gap++
			continue
		}
		b = binary.AppendUvarint(binary.AppendUvarint(b, gap), uint64(n))
		gap = 0
	}
	return b
}

// Decode reads encoded metrics. It accepts only what [Set.Encode] writes. Whatever the bytes are, it allocates less than 1 MiB.
func Decode(b []byte) (*Set, error) {
	if len(b) > MaxBytes {
		return nil, fmt.Errorf("%w: expected at most %d bytes, found %d", ErrDamaged, MaxBytes, len(b))
	}
	r := &reader{b: b}
	if v := r.byte("version"); r.err == nil && v > version {
		return nil, fmt.Errorf("%w: expected at most %d, found %d", ErrNewer, version, v)
	} else if r.err == nil && v == 0 {
		r.fail("version: expected 1 to %d, found 0", version)
	}
	s := &Set{}
	before := ""
	for range r.uvarint("number of metrics", MaxMetrics) {
		name := string(r.bytes("name", int(r.byte("length of a name"))))
		if err := checkName(name); r.err == nil && err != nil {
			r.fail("%v", err)
		}
		//guard:metrics-in-order
		if r.err == nil && name <= before {
			r.fail("name: expected one above %q, found %q", before, name)
		}
		m := r.metric(MaxCells - s.cells)
		if r.err != nil {
			break
		}
		if s.metrics == nil {
			s.metrics = map[string]*metric{}
		}
		s.metrics[name], before = m, name
		s.cells += len(m.cells)
	}
	if r.err == nil && len(r.b) > r.at {
		r.fail("expected the end, found %d more bytes", len(r.b)-r.at)
	}
	if r.err != nil {
		return nil, r.err
	}
	return s, nil
}

// reader reads from bytes. After an error, it returns zeros.
type reader struct {
	b   []byte
	at  int
	err error
}

func (r *reader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf("%w: byte %d: %s", ErrDamaged, r.at, fmt.Sprintf(format, args...))
	}
}

func (r *reader) bytes(what string, n int) []byte {
	if r.err == nil && n > len(r.b)-r.at {
		r.fail("%s: expected %d bytes, found %d", what, n, len(r.b)-r.at)
	}
	if r.err != nil {
		return nil
	}
	r.at += n
	return r.b[r.at-n : r.at]
}

func (r *reader) byte(what string) byte {
	if b := r.bytes(what, 1); b != nil {
		return b[0]
	}
	return 0
}

// uvarint reads a number from 0 to most, in its shortest form.
func (r *reader) uvarint(what string, most uint64) uint64 {
	if r.err != nil {
		return 0
	}
	v, n := binary.Uvarint(r.b[r.at:])
	switch {
	case n <= 0:
		r.fail("%s: expected a number, found none", what)
	case n != max(1, (bits.Len64(v)+6)/7):
		r.fail("%s: expected the shortest form of %d, found %d bytes", what, v, n)
	case v > most:
		r.fail("%s: expected at most %d, found %d", what, most, v)
	default:
		r.at += n
		return v
	}
	return 0
}

// metric reads the kind and the content of a metric with at most room counts.
func (r *reader) metric(room int) *metric {
	m := &metric{kind: Kind(r.byte("kind"))}
	switch m.kind {
	case KindSum, KindMean:
		m.count = int64(r.uvarint("number of values", MaxCount))
		r.total(m)
	case KindConfusion:
		m.classes = int(r.byte("classes"))
		if r.err == nil && (m.classes < 2 || m.classes > MaxClasses) {
			r.fail("classes: expected 2 to %d, found %d", MaxClasses, m.classes)
		}
		r.cells(m, m.classes*m.classes, room)
	case KindHistogram:
		r.cells(m, 2*Bins, room)
	default:
		r.fail("kind: expected 1 to %d, found %d", KindHistogram, m.kind)
	}
	return m
}

// total reads a sum. The sum of count values has at most 2098 + bits of count bits.
func (r *reader) total(m *metric) {
	sign := r.byte("sign")
	if sign == 0 || r.err != nil {
		return
	}
	first, n := int(r.byte("lowest limb")), int(r.byte("number of limbs"))
	if sign > 2 || n == 0 || first+n > limbs {
		r.fail("sum: expected the sign 0 to 2 and 1 to %d limbs, found %d, %d after %d", limbs, sign, n, first)
	}
	list := r.bytes("sum", 4*n)
	if r.err != nil {
		return
	}
	var limb [limbs]uint32
	for i := range n {
		limb[first+i] = binary.LittleEndian.Uint32(list[4*i:])
	}
	if limb[first] == 0 || limb[first+n-1] == 0 {
		r.fail("sum: expected no zero limb at an end")
	}
	if most := 1024 - lowest + bits.Len64(uint64(m.count)); m.count == 0 || bitLen(&limb) > most {
		r.fail("sum: expected at most %d bits for %d values, found %d", most, m.count, bitLen(&limb))
	}
	m.total.setMagnitude(&limb, 3-2*int(sign))
}

// cells reads n counts.
func (r *reader) cells(m *metric, n, room int) {
	used := int(r.uvarint("number of counts", uint64(n)))
	//guard:decoded-cells-limit
	if r.err == nil && n > room {
		r.fail("counts: expected at most %d in all metrics, found more", MaxCells)
	}
	if r.err != nil {
		return
	}
	m.cells = make([]int64, n)
	for at := 0; used > 0; used-- {
		at += int(r.uvarint("zeros", uint64(n-at-used)))
		count := int64(r.uvarint("count", uint64(MaxCount-m.count)))
		if r.err == nil && count == 0 {
			r.fail("count: expected 1 or more, found 0")
		}
		if r.err != nil {
			return
		}
		m.cells[at] = count
		m.count += count
		at++
	}
}
