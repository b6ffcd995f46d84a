package ring

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"

	"trainmaster/pserver/floats"
)

// hello is the first message on a connection, and the answer to it.
//
//	bytes   field       meaning
//	0-3     magic       "TMRG"
//	4       version     1
//	5       status      0 in a hello; in an answer: see below
//	6-7     0
//	8-23    job         id of the job instance
//	24-31   generation  of the sender; in an answer: the newest one that the receiver knows
//	32-35   from        rank of the sender
//	36-39   to          rank of the receiver
//	40-47   members     FNV-1a of the ids and addresses of all members
//	48-51   0
//	52-55   crc         CRC-32C of bytes 0-51
type hello struct {
	status     status
	job        [16]byte
	generation uint64
	from, to   uint32
	members    uint64
}

const helloSize = 56

var magic = [4]byte{'T', 'M', 'R', 'G'}

const protocolVersion = 1

// status is the answer to a hello.
type status byte

const (
	welcome      status = 1
	oldSender    status = 2 // the generation of the sender is older
	otherJob     status = 3
	otherMembers status = 4 // the same generation, with another list or other ranks
	notYet       status = 5 // the receiver has not received the generation
)

// ErrOldGeneration is returned if the members have formed a newer generation.
var ErrOldGeneration = errors.New("a newer generation exists")

// err returns the error of the sender of a hello.
func (h hello) err() error {
	switch h.status {
	case welcome:
		return nil
	case oldSender:
		return fmt.Errorf("%w: %d", ErrOldGeneration, h.generation)
	case otherJob:
		return errors.New("expected a member of this job, found one of another job at its address")
	case otherMembers:
		return errors.New("expected a member of this generation, found another list of members at its address")
	case notYet:
		return errNotYet
	}
	return fmt.Errorf("handshake: expected a status from 1 to 5, found %d", h.status)
}

var errNotYet = errors.New("the member has not received the generation")

func (h hello) encode() (raw [helloSize]byte) {
	copy(raw[:], magic[:])
	raw[4], raw[5] = protocolVersion, byte(h.status)
	copy(raw[8:], h.job[:])
	binary.LittleEndian.PutUint64(raw[24:], h.generation)
	binary.LittleEndian.PutUint32(raw[32:], h.from)
	binary.LittleEndian.PutUint32(raw[36:], h.to)
	binary.LittleEndian.PutUint64(raw[40:], h.members)
	binary.LittleEndian.PutUint32(raw[helloSize-4:], floats.Sum(0, raw[:helloSize-4]))
	return raw
}

func decodeHello(raw *[helloSize]byte) (h hello, err error) {
	switch {
	case [4]byte(raw[:4]) != magic:
		return h, fmt.Errorf("handshake: expected %q, found %q", magic, raw[:4])
	case raw[4] != protocolVersion:
		return h, fmt.Errorf("handshake: expected version %d of the protocol, found %d: run the same release on all members", protocolVersion, raw[4])
	}
	if got, want := floats.Sum(0, raw[:helloSize-4]), binary.LittleEndian.Uint32(raw[helloSize-4:]); got != want {
		return h, fmt.Errorf("handshake: expected checksum %08x, found %08x", want, got)
	}
	return hello{
		status: status(raw[5]), job: [16]byte(raw[8:24]), generation: binary.LittleEndian.Uint64(raw[24:]),
		from: binary.LittleEndian.Uint32(raw[32:]), to: binary.LittleEndian.Uint32(raw[36:]), members: binary.LittleEndian.Uint64(raw[40:]),
	}, nil
}

// digest identifies the members in rank order.
func (m Membership) digest() uint64 {
	h := fnv.New64a()
	for _, member := range m.Members {
		fmt.Fprintf(h, "%d %s %d %s ", len(member.ID), member.ID, len(member.Address), member.Address)
	}
	return h.Sum64()
}
