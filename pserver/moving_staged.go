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

// stagedPart is what a trainer has staged for a block.
type stagedPart struct {
	incarnation uint64
	version     uint64
	records     uint32
	sequence    uint64
	sum         []float32
}

// checkMovable says why blocks of a model stay where they are.
func (m *model) checkMovable() error {
	if m.sync && len(m.table.Sparse) > 0 {
		return fmt.Errorf("%w: staged rows of tables do not move: blocks of a model with tables of embeddings move in mode async only", errMismatch)
	}
	return nil
}

// who lists the trainers that have staged a block for version, or a later one.
func (st *stages) who(local int, version uint64) (incarnations []uint64) {
	st.mu.Lock()
	defer st.mu.Unlock()
	for incarnation, g := range st.byIncarnation {
		g.mu.Lock()
		if g.parts[local].sequence != 0 && g.version >= version {
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
	return &stagedPart{incarnation, g.version, g.records, p.sequence, slices.Clone(p.sum)}, nil
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

// arriveLocked adds what came with a block. Of two attempts of a trainer at one version the later one counts; of the earlier
// one that trainer sends nothing any more.
func (st *stages) arriveLocked(h *holding, local int, staged []stagedPart) {
	for _, p := range staged {
		g := st.byIncarnation[p.incarnation]
		if g == nil {
			g = newStage(p.incarnation, h)
			st.byIncarnation[p.incarnation] = g
		}
		isOther := p.version != g.version || p.records != g.records
		if isOther && (p.version < g.version || p.version == g.version && p.sequence < g.newest()) {
			continue
		}
		if isOther {
			g.reset(p.version, p.records)
		}
		g.parts[local] = part{sum: p.sum, sequence: p.sequence}
		g.present++
		st.bytes.Add(int64(4 * len(p.sum)))
	}
}

// newest is the last frame of the version that the stage has.
func (g *stage) newest() (sequence uint64) {
	for _, p := range g.parts {
		sequence = max(sequence, p.sequence)
	}
	return sequence
}
