package taskqueue

// TaskID is a token in 63 bits, for clients that return a number instead of a token: 6 bits of the dataset, 13 of the pass, 32 of the
// position, 12 of the attempt. The epoch is not in it: a job with explicit commits requires the token.
//
// Pass and attempt are the lower bits of their numbers. The queue completes them to the newest pass and the newest attempt with these
// bits, so a number is exact for a task of the last 8,192 passes and 4,096 attempts. It is above 0 in these passes.
type TaskID int64

const (
	attemptBits  = 12
	positionBits = 32
	passBits     = 13
)

// ID returns the token as a number.
func (t Token) ID() TaskID {
	id := int64(t.Dataset)
	id = id<<passBits | int64(t.Pass)&(1<<passBits-1)
	id = id<<positionBits | int64(t.Position)&(1<<positionBits-1)
	return TaskID(id<<attemptBits | int64(t.Attempt)&(1<<attemptBits-1))
}

// tokenOf returns the token of a number, in the current epoch. Any number may come from a client.
func (q *Queue) tokenOf(id TaskID) (tok Token, ok bool) {
	attempt := uint32(id & (1<<attemptBits - 1))
	position := int(id >> attemptBits & (1<<positionBits - 1))
	pass := uint32(id >> (attemptBits + positionBits) & (1<<passBits - 1))
	dataset := int(id >> (attemptBits + positionBits + passBits))
	if id <= 0 || dataset >= len(q.sets) {
		return Token{}, false
	}
	s := q.sets[dataset]
	tok = Token{Epoch: q.epoch, Kind: s.kind, Dataset: dataset, Position: position, Pass: Pass(newest(uint32(s.pass), pass, passBits)), Attempt: Attempt(max(attempt, 1))}
	if e := s.byKey[liveKey{tok.Pass, position}]; e != nil {
		//guard:task-id-attempt
		tok.Attempt = Attempt(newest(uint32(e.next-1), attempt, attemptBits))
	}
	return tok, true
}

// newest returns the greatest number up to last with these lower bits; 0 if there is none.
func newest(last, lower uint32, bits int) uint32 {
	n := last&^(1<<bits-1) | lower
	switch {
	case n <= last:
		return n
	case n >= 1<<bits:
		return n - 1<<bits
	}
	return 0
}
