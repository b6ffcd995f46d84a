package parquet

import (
	"encoding/binary"
	"fmt"

	"trainmaster/recordio"
)

// Types of the compact protocol of Apache Thrift, https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md.
const (
	typeStop   = 0
	typeTrue   = 1
	typeFalse  = 2
	typeByte   = 3
	typeI16    = 4
	typeI32    = 5
	typeI64    = 6
	typeDouble = 7
	typeBinary = 8
	typeList   = 9
	typeSet    = 10
	typeMap    = 11
	typeStruct = 12
	typeUUID   = 13
)

// maxDepth limits nested structs and lists. A footer has fewer than 10.
const maxDepth = 64

// decoder reads values of the compact protocol. After an error, all further values are zero.
type decoder struct {
	data  []byte
	at    int
	depth int
	err   error
}

func (d *decoder) fail(format string, args ...any) {
	if d.err == nil {
		d.err = fmt.Errorf("%w: footer, byte %d: %s", recordio.ErrMalformed, d.at, fmt.Sprintf(format, args...))
	}
	d.at = len(d.data)
}

func (d *decoder) byte() byte {
	if d.at >= len(d.data) {
		d.fail("expected more bytes, found the end")
		return 0
	}
	d.at++
	return d.data[d.at-1]
}

func (d *decoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.data[d.at:])
	if n <= 0 {
		d.fail("expected a number")
		return 0
	}
	d.at += n
	return v
}

func (d *decoder) varint() int64 {
	v := d.uvarint()
	return int64(v>>1) ^ -int64(v&1)
}

func (d *decoder) skipBytes(n uint64) {
	left := uint64(len(d.data) - d.at)
	if n > left {
		d.fail("expected %d bytes, found %d", n, left)
		return
	}
	d.at += int(n)
}

// structure calls field for each field of a struct. field must read or skip the value.
func (d *decoder) structure(field func(id int64, kind byte)) {
	if d.depth++; d.depth > maxDepth {
		d.fail("expected at most %d nested values", maxDepth)
	}
	id := int64(0)
	for d.err == nil {
		b := d.byte()
		kind := b & 0xf
		if kind == typeStop || d.err != nil {
			break
		}
		if delta := int64(b >> 4); delta != 0 {
			id += delta
		} else {
			id = d.varint()
		}
		field(id, kind)
	}
	d.depth--
}

// list returns the number of the following elements and their type. The number can be wrong: each element has at least a byte, so that the
// elements end with an error at the end of the data.
func (d *decoder) list() (n uint64, kind byte) {
	b := d.byte()
	if n = uint64(b >> 4); n == 15 {
		n = d.uvarint()
	}
	return n, b & 0xf
}

// structures calls element for each struct of a list.
func (d *decoder) structures(kind byte, element func()) {
	if !d.expect(kind, typeList) {
		return
	}
	n, of := d.list()
	if n > 0 && !d.expect(of, typeStruct) {
		return
	}
	for range n {
		if d.err != nil {
			return
		}
		element()
	}
}

// expect reports whether a value has the expected type.
func (d *decoder) expect(found, want byte) bool {
	if found != want {
		d.fail("expected a value of type %d, found type %d", want, found)
	}
	return d.err == nil
}

// number reads an i32 or i64.
func (d *decoder) number(kind byte) int64 {
	if kind != typeI32 && !d.expect(kind, typeI64) {
		return 0
	}
	return d.varint()
}

// skip skips a value of a field.
func (d *decoder) skip(kind byte) {
	switch kind {
	case typeTrue, typeFalse: // the type has the value
	case typeByte:
		d.skipBytes(1)
	case typeI16, typeI32, typeI64:
		d.uvarint()
	case typeDouble:
		d.skipBytes(8)
	case typeUUID:
		d.skipBytes(16)
	case typeBinary:
		d.skipBytes(d.uvarint())
	case typeStruct:
		d.structure(func(_ int64, kind byte) { d.skip(kind) })
	case typeList, typeSet:
		n, of := d.list()
		d.elements(n, of)
	case typeMap:
		if n := d.uvarint(); n > 0 {
			kinds := d.byte()
			for i := uint64(0); i < n && d.err == nil; i++ {
				d.elements(1, kinds>>4)
				d.elements(1, kinds&0xf)
			}
		}
	default:
		d.fail("unknown type %d", kind)
	}
}

// elements skips n elements of a list. A boolean has a byte there.
func (d *decoder) elements(n uint64, kind byte) {
	if d.depth++; d.depth > maxDepth {
		d.fail("expected at most %d nested values", maxDepth)
	}
	if kind == typeTrue || kind == typeFalse {
		kind = typeByte
	}
	for range n {
		if d.err != nil {
			break
		}
		d.skip(kind)
	}
	d.depth--
}
