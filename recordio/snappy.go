package recordio

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/klauspost/compress/s2"
)

// The framing format of snappy: a stream identifier, then frames of at most 64 KiB of plain bytes. Walking the frames here,
// instead of through a stream reader, gives the length of the output before any memory is taken, and decodes straight into its
// place.
const (
	frameIdentifier   = 0xff
	frameCompressed   = 0x00
	frameUncompressed = 0x01
	firstSkippable    = 0x80 // 0x02 to 0x7f are reserved and must not be skipped

	frameHeaderSize = 4 // kind, then the body's length as u24
	frameSumSize    = 4 // a masked CRC-32C of the plain bytes, at the start of a data frame's body
	frameMaxPlain   = 64 << 10

	// snappyMaxRatio bounds what an honest block can decode to: the densest element is a copy of 64 bytes in 3.
	snappyMaxRatio = 22
)

const snappyIdentifier = "sNaPpY"

func maskedSum(plain []byte) uint32 {
	sum := crc32.Checksum(plain, castagnoli)
	return (sum>>15 | sum<<17) + 0xa282ead8
}

func (d *decompressor) unsnapStream(stored []byte, limit int64) ([]byte, error) {
	var size int64
	err := walkFrames(stored, func(kind byte, _ uint32, body []byte) error {
		n, err := framePlainSize(kind, body)
		//guard:decompressed-size-limit
		if size += n; err == nil && size > limit {
			err = pastLimit(limit)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	plain := d.room(int(size))
	at := 0
	err = walkFrames(stored, func(kind byte, sum uint32, body []byte) error {
		n := len(body)
		if kind == frameUncompressed {
			copy(plain[at:], body)
		} else {
			size, _ := framePlainSize(kind, body)
			n = int(size)
			if _, err := s2.Decode(plain[at:at+n:at+n], body); err != nil {
				return fmt.Errorf("%w: a snappy frame does not decode: %v", ErrMalformed, err)
			}
		}
		if found := maskedSum(plain[at : at+n]); found != sum {
			return fmt.Errorf("%w: a snappy frame has checksum %#08x, expected %#08x", ErrMalformed, found, sum)
		}
		at += n
		return nil
	})
	return plain, err
}

func framePlainSize(kind byte, body []byte) (int64, error) {
	n := int64(len(body))
	if kind == frameCompressed {
		var err error
		if n, err = blockPlainSize(body); err != nil {
			return 0, err
		}
	}
	if n > frameMaxPlain {
		return 0, fmt.Errorf("%w: a snappy frame of %d plain bytes, at most %d are allowed", ErrMalformed, n, frameMaxPlain)
	}
	return n, nil
}

// blockPlainSize is what a snappy block says it decodes to, if that is possible at all for its length.
func blockPlainSize(block []byte) (int64, error) {
	n, err := s2.DecodedLen(block)
	if err != nil {
		return 0, fmt.Errorf("%w: a snappy block without a length: %v", ErrMalformed, err)
	}
	if int64(n) > snappyMaxRatio*int64(len(block)) {
		return 0, fmt.Errorf("%w: a snappy block of %d bytes declares %d plain bytes", ErrMalformed, len(block), n)
	}
	return int64(n), nil
}

// walkFrames calls data for each frame that holds data, with its checksum and the body after it.
func walkFrames(stream []byte, data func(kind byte, sum uint32, body []byte) error) error {
	for rest := stream; len(rest) > 0; {
		at := len(stream) - len(rest)
		if len(rest) < frameHeaderSize {
			return fmt.Errorf("%w: the snappy stream ends inside a frame's header, at %d", ErrMalformed, at)
		}
		word := binary.LittleEndian.Uint32(rest)
		kind, size := byte(word), int(word>>8)
		rest = rest[frameHeaderSize:]
		if size > len(rest) {
			return fmt.Errorf("%w: the snappy stream ends inside a frame of %d bytes, at %d", ErrMalformed, size, at)
		}
		body := rest[:size]
		rest = rest[size:]
		switch {
		case at == 0 && kind != frameIdentifier, kind == frameIdentifier && string(body) != snappyIdentifier:
			return fmt.Errorf("%w: no snappy stream identifier at %d", ErrMalformed, at)
		case kind == frameCompressed || kind == frameUncompressed:
			if size < frameSumSize {
				return fmt.Errorf("%w: a snappy frame of %d bytes at %d has no checksum", ErrMalformed, size, at)
			}
			if err := data(kind, binary.LittleEndian.Uint32(body), body[frameSumSize:]); err != nil {
				return err
			}
		case kind < firstSkippable:
			return fmt.Errorf("%w: reserved snappy frame %#02x at %d", ErrMalformed, kind, at)
		}
	}
	return nil
}

func (d *decompressor) unsnapBlock(stored []byte, limit int64) ([]byte, error) {
	size, err := blockPlainSize(stored)
	if err != nil {
		return nil, err
	}
	if size > limit {
		return nil, pastLimit(limit)
	}
	plain, err := s2.Decode(d.room(int(size)), stored)
	if err != nil {
		return nil, fmt.Errorf("%w: the snappy block does not decode: %v", ErrMalformed, err)
	}
	return plain, nil
}

// appendFrames appends plain to dst as a snappy stream. It encodes blocks in scratch, and returns it to be used again.
func appendFrames(dst, plain, scratch []byte) (stream, scratchAgain []byte) {
	dst = append(dst, frameIdentifier, byte(len(snappyIdentifier)), 0, 0)
	dst = append(dst, snappyIdentifier...)
	for len(plain) > 0 {
		block := plain[:min(len(plain), frameMaxPlain)]
		plain = plain[len(block):]
		scratch = s2.EncodeSnappy(scratch[:cap(scratch)], block)
		kind, body := uint32(frameCompressed), scratch
		if len(scratch) >= len(block)-len(block)/8 { // not worth the reader's time
			kind, body = frameUncompressed, block
		}
		dst = binary.LittleEndian.AppendUint32(dst, uint32(frameSumSize+len(body))<<8|kind)
		dst = binary.LittleEndian.AppendUint32(dst, maskedSum(block))
		dst = append(dst, body...)
	}
	return dst, scratch
}
