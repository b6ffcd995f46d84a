package allreduce

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"trainmaster/taskqueue"
)

// header is what a member sends to all members before a step.
type header struct {
	version uint64
	newest  uint64 // generation that the member knows
	ended   bool   // the job has ended
	batch   Batch  // Records 0 and not Last: nothing
}

// Batch is a mini-batch of a task.
type Batch struct {
	Token   taskqueue.Token
	From    int64 // records of the task before it
	Records int
	Last    bool    // it has the last record of the task. With Records 0: all records are in the model
	Rate    float64 // learning rate of the task; 0: the one of the optimizer
}

const headerSize = 72

const (
	flagEnded = 1 << iota
	flagLast
)

func (h header) encode() []byte {
	b := make([]byte, 0, headerSize)
	flags := uint32(0)
	if h.ended {
		flags |= flagEnded
	}
	if h.batch.Last {
		flags |= flagLast
	}
	t := h.batch.Token
	for _, v := range []uint64{h.version, h.newest, uint64(t.Position), uint64(h.batch.From), math.Float64bits(h.batch.Rate)} {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	for _, v := range []uint32{flags, t.Epoch, uint32(t.Kind), uint32(t.Dataset), uint32(t.Pass), uint32(t.Attempt), uint32(h.batch.Records), 0} {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	return b
}

func decodeHeader(b []byte) (h header, err error) {
	if len(b) != headerSize {
		return h, fmt.Errorf("header of a step: expected %d bytes, found %d: run the same release on all members", headerSize, len(b))
	}
	long := func(i int) uint64 { return binary.LittleEndian.Uint64(b[8*i:]) }
	short := func(i int) uint32 { return binary.LittleEndian.Uint32(b[40+4*i:]) }
	h.version, h.newest = long(0), long(1)
	h.ended, h.batch.Last = short(0)&flagEnded != 0, short(0)&flagLast != 0
	h.batch.Token = taskqueue.Token{Epoch: short(1), Kind: taskqueue.Kind(short(2)), Dataset: int(short(3)), Pass: taskqueue.Pass(short(4)), Position: int(long(2)), Attempt: taskqueue.Attempt(short(5))}
	h.batch.From, h.batch.Records, h.batch.Rate = int64(long(3)), int(short(6)), math.Float64frombits(long(4))
	return h, nil
}

var errVersions = errors.New("expected the same version at all members")

// accept returns which contributions are in the next step. All members return the same, because they have the same progress and headers.
func accept(p *Progress, headers []header) []bool {
	accepted := make([]bool, len(headers))
	for rank, h := range headers {
		b := h.batch
		if b.Records == 0 {
			continue
		}
		used, whole := p.Used(b.Token)
		//guard:allreduce-record-once
		accepted[rank] = !whole && used == b.From
	}
	for rank, h := range headers {
		for other, o := range headers[:rank] {
			//guard:allreduce-task-once-in-a-step
			if accepted[rank] && accepted[other] && sameTask(h.batch.Token, o.batch.Token) {
				accepted[other] = h.batch.Token.Attempt <= o.batch.Token.Attempt
				accepted[rank] = !accepted[other]
			}
		}
	}
	return accepted
}

func sameTask(a, b taskqueue.Token) bool { return passOf(a) == passOf(b) && a.Position == b.Position }
