package wire

import (
	"encoding/binary"
	"fmt"

	"trainmaster/pserver/placement"
)

const (
	// Magic is the start of each frame and of each data connection.
	Magic = "TMPS"
	// HeaderSize is the size of an encoded header in bytes.
	HeaderSize = 64
	// MaxPayload is the maximum payload of a frame in bytes: one block.
	MaxPayload = 4 * placement.BlockElements
	// Version is the format that this package writes, and the only one it reads.
	Version = 1

	magic     = 0x53504d54 // Magic read little-endian
	crcOffset = 60
)

// Op is the operation of a frame.
type Op uint8

// The operations, as the package comment explains them.
const (
	Hello    Op = 1
	Pull     Op = 2
	Push     Op = 3
	PushPull Op = 4
	Stage    Op = 5
	Put      Op = 6

	LookupRows Op = 7
	PushRows   Op = 8
	StageRows  Op = 9
	ScanRows   Op = 10
)

var opNames = [...]string{
	Hello: "hello", Pull: "pull", Push: "push", PushPull: "push-pull", Stage: "stage", Put: "put",
	LookupRows: "lookup-rows", PushRows: "push-rows", StageRows: "stage-rows", ScanRows: "scan-rows",
}

func (op Op) String() string {
	if op >= Hello && op <= ScanRows {
		return opNames[op]
	}
	return fmt.Sprintf("op %d", uint8(op))
}

// DType is the element type of a payload.
type DType uint8

// The element types. BFloat16 is the upper half of a float32, see [Narrow].
const (
	Bytes    DType = 0
	Float32  DType = 1
	BFloat16 DType = 2
	RowBatch DType = 3 // Rows
)

var dtypeNames = [...]string{Bytes: "bytes", Float32: "float32", BFloat16: "bfloat16", RowBatch: "rows"}

// Size is the size of an element in bytes.
func (d DType) Size() int {
	switch d {
	case Float32:
		return 4
	case BFloat16:
		return 2
	}
	return 1
}

func (d DType) String() string {
	if d <= RowBatch {
		return dtypeNames[d]
	}
	return fmt.Sprintf("dtype %d", uint8(d))
}

// Flags say what kind of frame it is.
type Flags uint8

// The flags, as the package comment explains them.
const (
	Reply     Flags = 1
	Error     Flags = 2
	Duplicate Flags = 4
	Shared    Flags = 8
)

// Header is a decoded header, without the checksum.
type Header struct {
	Op          Op
	DType       DType
	Flags       Flags
	Block       uint64
	Incarnation uint64
	Placement   uint32
	Argument    uint32
	Step        uint64
	Sequence    uint64
	Version     uint32
	ShardEpoch  uint16
	JobEpoch    uint16
	Length      uint32
}

// Encode writes h into raw, all but the checksum: Seal adds that.
func (h *Header) Encode(raw *[HeaderSize]byte) {
	le := binary.LittleEndian
	le.PutUint32(raw[0:], magic)
	raw[4], raw[5], raw[6], raw[7] = Version, byte(h.Op), byte(h.DType), byte(h.Flags)
	le.PutUint64(raw[8:], h.Block)
	le.PutUint64(raw[16:], h.Incarnation)
	le.PutUint32(raw[24:], h.Placement)
	le.PutUint32(raw[28:], h.Argument)
	le.PutUint64(raw[32:], h.Step)
	le.PutUint64(raw[40:], h.Sequence)
	le.PutUint32(raw[48:], h.Version)
	le.PutUint16(raw[52:], h.ShardEpoch)
	le.PutUint16(raw[54:], h.JobEpoch)
	le.PutUint32(raw[56:], h.Length)
}

// Decode reads h from raw. The error is a *Fault that a reply can carry; what
// it found is checked against the limits of the format, not yet against the checksum.
func (h *Header) Decode(raw *[HeaderSize]byte) error {
	le := binary.LittleEndian
	if got := le.Uint32(raw[0:]); got != magic {
		return Faultf(Malformed, "frame starts with % x, expected % x (%q)", raw[:4], Magic, Magic)
	}
	if raw[4] != Version {
		return Faultf(Malformed, "frame has version %d: expected %d", raw[4], Version)
	}
	h.Op, h.DType, h.Flags = Op(raw[5]), DType(raw[6]), Flags(raw[7])
	h.Block = le.Uint64(raw[8:])
	h.Incarnation = le.Uint64(raw[16:])
	h.Placement = le.Uint32(raw[24:])
	h.Argument = le.Uint32(raw[28:])
	h.Step = le.Uint64(raw[32:])
	h.Sequence = le.Uint64(raw[40:])
	h.Version = le.Uint32(raw[48:])
	h.ShardEpoch = le.Uint16(raw[52:])
	h.JobEpoch = le.Uint16(raw[54:])
	h.Length = le.Uint32(raw[56:])
	switch {
	case h.Op < Hello || h.Op > ScanRows:
		return Faultf(Malformed, "frame has unknown %v", h.Op)
	case h.DType > RowBatch:
		return Faultf(Malformed, "frame has unknown %v", h.DType)
	case h.Flags&^(Reply|Error|Duplicate|Shared) != 0:
		return Faultf(Malformed, "frame has unknown flags %#x", uint8(h.Flags))
	case h.Length > MaxPayload:
		return Faultf(Malformed, "frame declares %d bytes of payload, the limit is %d", h.Length, MaxPayload)
	}
	return nil
}
