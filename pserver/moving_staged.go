package pserver

import (
	"errors"
	"fmt"
	"slices"
)

// In synchronous mode a block moves between two versions: the shard that has it and the one that gets it are at the same
// one, and neither makes another before the move is over. What trainers have staged for the block goes along, since they were
// told that it is there; whoever is staging waits, is answered "moved", and stages what is missing at the new place.

// errMidMove refuses what would change one of the two copies of a block.
var errMidMove = errors.New("blocks are on their way")

// moment is where a shard stands: a block goes only between two shards that stand alike.
type moment struct {
	jobEpoch uint32
	version  uint64
}

func (s *shard) moment() moment { return moment{s.jobEpoch.Load(), s.version.Load()} }

// checkMoment refuses what comes from a shard that stands elsewhere.
func (s *shard) checkMoment(what string, at moment) error {
	if now := s.moment(); at != now {
		return fmt.Errorf("%w: %s comes from version %d of job epoch %d, shard %d is at %d of %d", errIncomplete, what, at.version, at.jobEpoch, s.index, now.version, now.jobEpoch)
	}
	return nil
}

// attempt is one try of a trainer at a version.
type attempt struct {
	incarnation uint64
	version     uint64
	records     uint32
	sequence    uint64 // of a frame of it
}

// stagedPart is what a trainer has staged for a block.
type stagedPart struct {
	attempt
	sum []float32
}

// who lists the trainers that have staged something for version, or a later one; has is asked with the lock of the stage.
func (st *stages) who(version uint64, has func(*stage) bool) (incarnations []uint64) {
	st.mu.Lock()
	defer st.mu.Unlock()
	for incarnation, g := range st.byIncarnation {
		g.mu.Lock()
		if g.version >= version && has(g) {
			incarnations = append(incarnations, incarnation)
		}
		g.mu.Unlock()
	}
	slices.Sort(incarnations)
	return incarnations
}

// readStaged copies what a trainer has staged for a frozen block.
func (s *shard) readStaged(term uint64, epoch uint32, id, incarnation uint64) (*stagedPart, error) {
	s.commitMu.Lock() // no placement changes
	defer s.commitMu.Unlock()
	b, err := s.frozenBlock(term, epoch, id)
	if err != nil {
		return nil, err
	}
	g := s.stages.find(incarnation)
	if g == nil {
		return nil, fmt.Errorf("%w: incarnation %d has staged nothing for %s", errOldMove, incarnation, b.name())
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	p := g.parts[b.local]
	if p.sequence == 0 {
		return nil, fmt.Errorf("%w: incarnation %d has staged nothing for %s", errOldMove, incarnation, b.name())
	}
	return &stagedPart{attempt{incarnation, g.version, g.records, p.sequence}, slices.Clone(p.sum)}, nil
}

// frozenBlock finds a block that nobody changes.
func (s *shard) frozenBlock(term uint64, epoch uint32, id uint64) (*block, error) {
	h, err := s.heed(term, epoch)
	if err != nil {
		return nil, err
	}
	b, err := h.find(id)
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.frozen == nil {
		return nil, fmt.Errorf("%w: %s is not frozen", errOldMove, b.name())
	}
	return b, nil
}

// lockAll keeps everybody from staging until unlock.
func (st *stages) lockAll() (unlock func()) {
	st.mu.Lock()
	locked := make([]*stage, 0, len(st.byIncarnation))
	for _, g := range st.byIncarnation {
		g.mu.Lock()
		locked = append(locked, g)
	}
	return func() {
		for _, g := range locked {
			g.mu.Unlock()
		}
		st.mu.Unlock()
	}
}

// renumberLocked gives all stages the new order of blocks; from says where each was, -1: elsewhere.
func (st *stages) renumberLocked(from []int) {
	for _, g := range st.byIncarnation {
		parts := make([]part, len(from))
		bytes, present := 0, 0
		for i, was := range from {
			if was < 0 {
				continue
			}
			parts[i] = g.parts[was]
			bytes += 4 * len(parts[i].sum)
			if parts[i].sequence != 0 {
				present++
			}
		}
		for _, p := range g.parts {
			bytes -= 4 * len(p.sum)
		}
		st.bytes.Add(int64(bytes))
		g.parts, g.present = parts, present
	}
}

// arriveLocked adds what came with a block.
func (st *stages) arriveLocked(h *holding, local int, staged []stagedPart) {
	for _, p := range staged {
		if g := st.admitLocked(h, p.attempt); g != nil {
			g.parts[local] = part{sum: p.sum, sequence: p.sequence}
			g.present++
			st.bytes.Add(int64(4 * len(p.sum)))
		}
	}
}

// admitLocked is the stage of an attempt, nil if there is a later one. Of two attempts of a trainer at one version the later
// one counts; of the earlier one that trainer sends nothing any more.
func (st *stages) admitLocked(h *holding, a attempt) *stage {
	g := st.byIncarnation[a.incarnation]
	if g == nil {
		g = newStage(a.incarnation, h)
		st.byIncarnation[a.incarnation] = g
	}
	if a.version == g.version && a.records == g.records {
		return g
	}
	if a.version < g.version || a.version == g.version && a.sequence < g.newest() {
		return nil
	}
	g.reset(a.version, a.records)
	return g
}

// newest is the last frame of the version that the stage has.
func (g *stage) newest() (sequence uint64) {
	for _, p := range g.parts {
		sequence = max(sequence, p.sequence)
	}
	for _, r := range g.rows {
		for _, p := range r.parts {
			sequence = max(sequence, p.sequence)
		}
	}
	return sequence
}
