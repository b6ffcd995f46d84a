package ring

import (
	"encoding/binary"
	"fmt"

	"trainmaster/pserver/floats"
)

// kind is what a frame is for.
type kind byte

const (
	ping         kind = 1
	contribution kind = 2 // a block of a part that the receiver owns
	sum          kind = 3 // a block of the part that the sender owns
	message      kind = 4
	copied       kind = 5 // a block of a broadcast
	abort        kind = 6 // the sender leaves the group; the payload is the reason
)

const (
	frameSize = 24
	maxBlock  = 256 << 10 // bytes of payload
	maxReason = 256       // bytes of the reason of an abort
	crcOffset = 20
)

// noMember is the block of an abort without a failed member.
const noMember = 1<<32 - 1

// frame is the header of a frame.
type frame struct {
	kind      kind
	operation uint32
	block     uint32
	length    uint32
	crc       uint32
}

// encode writes the header of a frame with this payload.
func (f frame) encode(into *[frameSize]byte, payload []byte) {
	clear(into[:])
	into[0] = byte(f.kind)
	binary.LittleEndian.PutUint32(into[4:], f.operation)
	binary.LittleEndian.PutUint32(into[8:], f.block)
	binary.LittleEndian.PutUint32(into[12:], uint32(len(payload)))
	binary.LittleEndian.PutUint32(into[crcOffset:], floats.Sum(floats.Sum(0, into[:crcOffset]), payload))
}

// decodeFrame reads a header, and checks what can be known before the payload.
func decodeFrame(raw *[frameSize]byte) (frame, error) {
	f := frame{
		kind:      kind(raw[0]),
		operation: binary.LittleEndian.Uint32(raw[4:]),
		block:     binary.LittleEndian.Uint32(raw[8:]),
		length:    binary.LittleEndian.Uint32(raw[12:]),
		crc:       binary.LittleEndian.Uint32(raw[crcOffset:]),
	}
	most := uint32(maxBlock)
	switch f.kind {
	case ping:
		most = 0
	case contribution, sum, message, copied:
	case abort:
		most = maxReason
	default:
		return frame{}, fmt.Errorf("frame: expected a kind from 1 to 6, found %d", f.kind)
	}
	//guard:ring-frame-bounded
	if f.length > most {
		return frame{}, fmt.Errorf("frame of kind %d: expected at most %d bytes, found %d", f.kind, most, f.length)
	}
	return f, nil
}

// check compares the checksum of a frame with the checksum of what arrived.
func (f frame) check(raw *[frameSize]byte, payload []byte) error {
	//guard:ring-frame-checksum
	if got := floats.Sum(floats.Sum(0, raw[:crcOffset]), payload); got != f.crc {
		return fmt.Errorf("frame of kind %d: expected checksum %08x, found %08x", f.kind, f.crc, got)
	}
	return nil
}
