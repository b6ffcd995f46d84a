package taskqueue

import (
	"bytes"
	"encoding/binary"
	"fmt"
)

// Format is the version of Snapshot that this build writes. It reads all before it: see
// Upgrade.
const Format = 5

// Snapshot is the stored state of a queue: what stands, gob-encoded and gzipped, under
// /task_queues. Its size is O(pending): the order of a pass is computed, whatever lies
// before the cursor and is in no list is done. Live, Aside and Since are columns of
// varints; docs/formats/task_queues.md draws them.
type Snapshot struct {
	Format       int
	Cluster      uint64 // etcd cluster id
	JobID        []byte // 16 random bytes
	Job          string
	Mode         uint8 // 0: counted at the finish; 1: explicit commits
	Epoch        uint32
	Commit       uint64
	LockRevision int64
	Nonce        uint64
	Clock        Clock
	NextOrdinal  Ordinal
	Status       Status
	Reason       string
	Saver        Ordinal
	SaverUntil   Clock
	Sets         []SetSnapshot
	Restores     uint8          // from a backup; from format 2
	Exact        *ExactSnapshot // in mode 1
	Rates        []RateChange   // from format 4
	RateNumber   uint64         // from format 4
}

// SetSnapshot is the state of one dataset.
type SetSnapshot struct {
	Name          string // from format 3
	Kind          Kind
	Passes        Pass // 0: the default; from format 3
	Digest        []byte
	ReportID      string
	Parts         int
	PartsDigest   []byte
	ChunksPerTask int
	Chunks        int
	Tasks         int
	Algorithm     uint8
	Seed          uint64
	Online        bool // from format 5
	Closed        bool // no more files will be appended
	Ended         bool // the last pass has ended; from format 3
	Pass          Pass
	Cursor        int
	Weight        int
	Credit        int
	AverageMicros int64
	Open          []OpenPass
	Live          []byte
	Aside         []byte
	Since         []byte
}

// OpenPass is the running count of one open pass.
type OpenPass struct {
	Pass       Pass
	Counted    int
	Sum1, Sum2 uint64
}

// The keys of the state, of the ledger, and of the sealing progress.
const (
	StateKey     = "/task_queues"
	LedgerPrefix = "/ledger/"
	SealedKey    = LedgerPrefix + "sealed"
)

// LedgerKey is where the events of a commit stand.
func LedgerKey(commit uint64) string { return fmt.Sprintf(LedgerPrefix+"%016x", commit) }

// Snapshot returns the state. LockRevision and Nonce are the caller's.
func (q *Queue) Snapshot(lockRevision int64, nonce uint64) *Snapshot {
	s := &Snapshot{
		Format: Format, Cluster: q.cluster, JobID: q.jobID[:], Job: q.job, Epoch: q.epoch, Commit: q.commit,
		LockRevision: lockRevision, Nonce: nonce, Clock: q.clock, NextOrdinal: q.nextOrdinal,
		Status: q.status, Reason: q.reason, Saver: q.saver, SaverUntil: q.saverUntil,
		Sets: make([]SetSnapshot, len(q.sets)), Restores: q.restores,
		Rates: q.rates, RateNumber: q.rateNumber,
	}
	if q.explicit != nil {
		s.Mode, s.Exact = 1, q.explicit.snapshot()
	}
	for i, set := range q.sets {
		set.compact()
		//guard:dataset-snapshot
		s.Sets[i] = SetSnapshot{
			Name: set.name, Kind: set.kind, Passes: set.passes, Digest: set.digest[:], ReportID: set.reportID, Parts: set.parts, PartsDigest: bytes.Clone(set.partsDigest[:]),
			ChunksPerTask: set.chunksPerTask, Chunks: set.chunks, Tasks: set.tasks, Algorithm: set.algorithm, Seed: set.seed,
			Online: set.online, Closed: set.closed, Ended: set.ended, Pass: set.pass, Cursor: set.cursor, Weight: set.weight, Credit: set.credit, AverageMicros: set.average,
			Live: set.encodeLive(q.clock, q.explicit != nil), Aside: set.encodeAside(q.explicit != nil), Since: set.encodeUncommitted(),
		}
		for _, p := range set.open {
			s.Sets[i].Open = append(s.Sets[i].Open, OpenPass{p.pass, p.counted, p.sum1, p.sum2})
		}
	}
	return s
}

// SnapshotKeys returns the keys of the round, the model and the strategy as of the state of Snapshot. Keys without a value are left out.
func (q *Queue) SnapshotKeys() (keys []Write) {
	if q.round.Number > 0 {
		keys = append(keys, Write{Key: RoundKey, Value: q.round.Encode()})
	}
	if q.model != (Model{}) {
		keys = append(keys, Write{Key: ModelKey, Value: q.model.encode()})
	}
	if q.steering != nil {
		keys = append(keys, Write{Key: StrategyKey, Value: q.steering.Encode()}, Write{Key: StrategyFileKey, Value: q.opt.Strategy.File})
		if q.statistics != (Statistics{}) {
			keys = append(keys, Write{Key: StatisticsKey, Value: q.statistics.encode()})
		}
	}
	return keys
}

// liveEntryBytes is the minimum size of a live entry. Each of its seven numbers takes at least one byte.
const liveEntryBytes = 7

// encodeLive writes the live entries column by column: what varies little from entry to
// entry stands together, for gzip.
func (s *set) encodeLive(now Clock, explicit bool) []byte {
	b := make([]byte, 0, 16+12*len(s.live))
	b = binary.AppendUvarint(b, uint64(len(s.live)))
	var pass Pass
	for _, e := range s.live {
		b = binary.AppendUvarint(b, uint64(e.pass-pass))
		pass = e.pass
	}
	position := 0
	for _, e := range s.live {
		b = binary.AppendVarint(b, int64(e.position-position))
		position = e.position
	}
	for _, e := range s.live {
		//guard:base-stored
		b = binary.AppendUvarint(b, uint64(e.base))
		b = binary.AppendUvarint(b, uint64(e.failures))
		lost := uint64(0)
		if e.lost {
			lost = 1
		}
		b = binary.AppendUvarint(b, uint64(e.losses)<<1|lost)
		b = binary.AppendUvarint(b, uint64(e.next-1))
		b = append(b, uint8(e.holderCount))
	}
	for _, e := range s.live {
		for _, h := range e.holders[:e.holderCount] {
			b = binary.AppendUvarint(b, uint64(h.trainer.ordinal))
		}
	}
	for _, e := range s.live {
		for _, h := range e.holders[:e.holderCount] {
			b = binary.AppendUvarint(b, uint64(e.next-h.attempt))
		}
	}
	var request uint64
	for _, e := range s.live {
		for _, h := range e.holders[:e.holderCount] {
			b = binary.AppendVarint(b, int64(h.request-request))
			request = h.request
		}
	}
	for _, e := range s.live {
		for _, h := range e.holders[:e.holderCount] {
			age := uint64(0) // prefetched
			if h.start != 0 {
				age = uint64(now-h.start) + 1
			}
			b = binary.AppendUvarint(b, age)
		}
	}
	if explicit {
		for _, e := range s.live {
			for _, h := range e.holders[:e.holderCount] {
				b = binary.AppendUvarint(b, uint64(h.mark))
			}
		}
	}
	return b
}

func (s *set) encodeAside(explicit bool) []byte {
	if len(s.aside) == 0 {
		return nil
	}
	b := binary.AppendUvarint(nil, uint64(len(s.aside)))
	index := 0
	for _, a := range s.sortedAside() {
		b = binary.AppendUvarint(b, uint64(a.index-index))
		index = a.index
		b = binary.AppendUvarint(b, uint64(a.pass))
		b = binary.AppendUvarint(b, uint64(a.failures))
		spared := uint64(0)
		if a.spared {
			spared = 1
		}
		b = binary.AppendUvarint(b, uint64(a.losses)<<1|spared)
		b = binary.AppendUvarint(b, uint64(a.next-1))
		b = binary.AppendUvarint(b, uint64(a.nextNewer-1))
		if explicit {
			b = binary.AppendUvarint(b, uint64(a.base))
			b = binary.AppendUvarint(b, uint64(a.baseNewer))
		}
	}
	return s.appendDropped(b)
}

// appendDropped lists which of the set-aside tasks are dropped, unless none is.
func (s *set) appendDropped(b []byte) []byte {
	index := 0
	for _, a := range s.sortedAside() {
		if a.dropped {
			b = binary.AppendUvarint(b, uint64(a.index-index))
			index = a.index
		}
	}
	return b
}
