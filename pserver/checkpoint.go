package pserver

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"trainmaster/pserver/wire"
	"trainmaster/safetensors"
)

// errSuperseded: a later start has taken over the checkpoint folder.
var errSuperseded = errors.New("the checkpoint folder was taken over by a later start of this shard")

// checkpoints writes the shard's checkpoints under one folder.
type checkpoints struct {
	shard *shard
	dir   string // <checkpoint-dir>/ps-<index>
	start uint64
	keep  int
	log   *logrus.Entry

	// step is called after each thing that changes the disk; tests die there.
	step func(what string)

	mu       sync.Mutex // one at a time
	sequence uint64
	written  uint64 // changes() when the newest one was cut

	statusMu sync.Mutex
	newest   string
	failure  string
}

// changes counts what a checkpoint would have to keep.
func (s *shard) changes() uint64 {
	return s.counters.pushed.Load() + s.counters.committed.Load() + s.counters.adopted.Load() + 1
}

// save writes a checkpoint if anything changed since the last one. Updates go
// on meanwhile. Disk errors are logged and kept for Describe, and the older
// checkpoints stay as they are; errSuperseded is returned too.
func (c *checkpoints) save() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	changes := c.shard.changes()
	if changes == c.written {
		return nil
	}
	began := time.Now()
	c.sequence++
	g := generation{c.start, c.sequence}
	bytes, err := c.write(g)
	c.note(g, err)
	if err != nil {
		os.RemoveAll(filepath.Join(c.dir, g.String()))
		c.log.WithError(err).WithField("generation", g).Error("checkpoint not written: the one before it stays, training goes on")
		return err
	}
	c.written = changes
	c.log.WithFields(logrus.Fields{"generation": g, "bytes": bytes, "took": time.Since(began).Round(time.Millisecond)}).Info("checkpoint written")
	if err := c.prune(g); err != nil {
		c.log.WithError(err).Warn("older checkpoints not removed")
	}
	return nil
}

func (c *checkpoints) note(g generation, err error) {
	c.statusMu.Lock()
	defer c.statusMu.Unlock()
	if c.failure = ""; err != nil {
		c.failure = err.Error()
		return
	}
	c.newest = g.String()
}

func (c *checkpoints) status() (newest, failure string) {
	c.statusMu.Lock()
	defer c.statusMu.Unlock()
	return c.newest, c.failure
}

func (c *checkpoints) write(g generation) (bytes int64, err error) {
	dir := filepath.Join(c.dir, g.String())
	if err := os.Mkdir(dir, 0o755); err != nil {
		return 0, err
	}
	c.step("folder made")
	h := c.shard.holding.Load()
	cut := c.shard.startCut()
	defer c.shard.endCut(h)
	m := newManifest(h.model, c.shard.index, g, cut)
	if m.Files, err = c.writeBlocks(dir, h, cut); err != nil {
		return 0, err
	}
	if err := syncFolder(dir); err != nil {
		return 0, err
	}
	c.step("folder synced")
	if err := c.writeManifest(dir, m); err != nil {
		return 0, err
	}
	for _, e := range m.Files {
		bytes += e.Size
	}
	return bytes, nil
}

// writeManifest makes a checkpoint of the files.
func (c *checkpoints) writeManifest(dir string, m *manifest) error {
	text, err := m.encode()
	if err != nil {
		return err
	}
	f, err := createFile(dir, manifestFile)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Write(text); err != nil {
		return err
	}
	c.step("manifest written")
	if starts, err := readStarts(c.dir); err != nil {
		return err
	} else if starts != c.start {
		return fmt.Errorf("%w: it counts %d starts, this is the %dth", errSuperseded, starts, c.start)
	}
	if _, err := f.publish(); err != nil {
		return err
	}
	c.step("manifest renamed")
	if err := syncFolder(dir); err != nil {
		return err
	}
	c.step("manifest synced")
	if err := syncFolder(c.dir); err != nil {
		return err
	}
	c.step("parent synced")
	return nil
}

// writeBlocks writes all files but the manifest.
func (c *checkpoints) writeBlocks(dir string, h *holding, cut *cut) (entries []manifestEntry, err error) {
	meta := map[string]string{"format": "pt", "shard": strconv.Itoa(c.shard.index), "version": strconv.FormatUint(cut.version, 10)}
	weights, err := newTensorFile(dir, weightsFile, runs(h, ""), meta)
	if err != nil {
		return nil, err
	}
	defer weights.file.Close()
	states, err := newStateFiles(dir, h, meta)
	defer closeFiles(states)
	if err != nil {
		return nil, err
	}
	c.step("headers written")
	marks := newMarks(h, cut)
	for _, b := range h.blocks {
		i := c.shard.collect(b, cut)
		if _, err := weights.Write(wire.FloatBytes(i.params)); err != nil {
			return nil, err
		}
		for slot := range len(i.state) / b.Len {
			if _, err := states[slot].Write(wire.FloatBytes(i.state[slot*b.Len : (slot+1)*b.Len])); err != nil {
				return nil, err
			}
		}
		marks.add(b.local, i)
		c.shard.cuts.recycle(i)
		c.step("block written")
	}
	pushes, err := createFile(dir, pushesFile)
	if err != nil {
		return nil, err
	}
	defer pushes.Close()
	if err := safetensors.Write(pushes, marks.tensors(), meta); err != nil {
		return nil, err
	}
	list := []func() (manifestEntry, error){weights.publish}
	for _, s := range states {
		list = append(list, s.publish)
	}
	for _, publish := range append(list, pushes.publish) {
		e, err := publish()
		if err != nil {
			return nil, err
		}
		entries = append(entries, e)
		c.step(e.Name + " published")
	}
	return entries, nil
}

// tensorFile is a safetensors file of this checkpoint.
type tensorFile struct {
	*safetensors.Writer
	file *outFile
}

func newTensorFile(dir, name string, infos []safetensors.Info, meta map[string]string) (*tensorFile, error) {
	f, err := createFile(dir, name)
	if err != nil {
		return nil, err
	}
	w, err := safetensors.NewWriter(f, infos, meta)
	if err != nil {
		f.Close()
		return nil, err
	}
	return &tensorFile{w, f}, nil
}

// newStateFiles begins the files of the optimizer's state, one for each slot; an
// empty one for a rule that keeps none. Those begun are returned also with an error.
func newStateFiles(dir string, h *holding, meta map[string]string) (files []*tensorFile, err error) {
	slots := h.model.rule.Slots()
	for i := range max(1, len(slots)) {
		var infos []safetensors.Info
		if i < len(slots) {
			infos = runs(h, "."+slots[i])
		}
		f, err := newTensorFile(dir, slotFile(i), infos, meta)
		if err != nil {
			return files, err
		}
		files = append(files, f)
	}
	return files, nil
}

func closeFiles(files []*tensorFile) {
	for _, f := range files {
		f.file.Close()
	}
}

func (t *tensorFile) publish() (manifestEntry, error) {
	if err := t.Writer.Close(); err != nil {
		return manifestEntry{}, err
	}
	return t.file.publish()
}

// run is a row of blocks of this shard that lie side by side in a tensor.
type run struct {
	tensor, first, last int // blocks first to last, by local index
}

func (h *holding) runs() []run {
	var list []run
	for i, b := range h.blocks {
		if n := len(list); n > 0 && list[n-1].tensor == b.Tensor && h.blocks[i-1].Offset+h.blocks[i-1].Len == b.Offset {
			list[n-1].last = i
			continue
		}
		list = append(list, run{b.Tensor, i, i})
	}
	return list
}

// runs describes what the shard holds as safetensors knows it: a whole tensor
// under its own name and shape, a part of one as a row named "tensor[from:to]".
func runs(h *holding, suffix string) []safetensors.Info {
	list := h.runs()
	infos := make([]safetensors.Info, len(list))
	for i, r := range list {
		t := h.model.table.Tensors[r.tensor]
		from := h.blocks[r.first].Offset
		to := h.blocks[r.last].Offset + h.blocks[r.last].Len
		infos[i] = safetensors.Info{Name: t.Name + suffix, DType: safetensors.F32, Shape: t.Shape}
		if from != 0 || to != t.Elements() {
			infos[i].Name = fmt.Sprintf("%s%s[%d:%d]", t.Name, suffix, from, to)
			infos[i].Shape = []int{to - from}
		}
	}
	return infos
}

// The tensors of pushes.safetensors.
const (
	blockVersions = "block_versions" // U64 [blocks]
	blockUpdates  = "block_updates"  // U64 [blocks], not with a plain optimizer
	ordinals      = "ordinals"       // U64 [trainers]
	incarnations  = "incarnations"   // U64 [trainers]
	appliedSteps  = "applied_steps"  // U64 [trainers, blocks]
)

// marks is what tells a repeated push from a new one, at a cut.
type marks struct {
	cut      *cut
	versions []uint64
	updates  []uint64   // nil with a plain optimizer
	applied  [][]uint64 // by trainer, by block
}

func newMarks(h *holding, c *cut) *marks {
	m := &marks{cut: c, versions: make([]uint64, len(h.blocks)), applied: make([][]uint64, len(c.trainers))}
	if !h.model.optimizer.Plain() {
		m.updates = make([]uint64, len(h.blocks))
	}
	for i := range m.applied {
		m.applied[i] = make([]uint64, len(h.blocks))
	}
	return m
}

func (m *marks) add(local int, i *image) {
	m.versions[local] = i.version
	if m.updates != nil {
		m.updates[local] = i.updates
	}
	for t, step := range i.applied {
		m.applied[t][local] = step
	}
}

func (m *marks) tensors() []safetensors.Tensor {
	var ords, incs, steps []uint64
	for i, t := range m.cut.trainers {
		ords = append(ords, uint64(t.ordinal))
		incs = append(incs, t.incarnation)
		steps = append(steps, m.applied[i]...)
	}
	trainers := len(m.cut.trainers)
	tensors := []safetensors.Tensor{
		fromUint64(blockVersions, m.versions, len(m.versions)),
		fromUint64(ordinals, ords, trainers),
		fromUint64(incarnations, incs, trainers),
		fromUint64(appliedSteps, steps, trainers, len(m.versions)),
	}
	if m.updates != nil {
		tensors = append(tensors, fromUint64(blockUpdates, m.updates, len(m.updates)))
	}
	return tensors
}

func fromUint64(name string, values []uint64, shape ...int) safetensors.Tensor {
	data := make([]byte, 0, 8*len(values))
	for _, v := range values {
		data = binary.LittleEndian.AppendUint64(data, v)
	}
	return safetensors.Tensor{Info: safetensors.Info{Name: name, DType: safetensors.U64, Shape: shape}, Data: data}
}

// prune removes what is older than the newest checkpoints to keep, and what was
// left half-written before latest. The manifest goes first, so that no
// half-removed one is taken for whole.
func (c *checkpoints) prune(latest generation) error {
	list, err := generations(c.dir)
	if err != nil {
		return err
	}
	whole := 0
	for _, g := range list {
		dir := filepath.Join(c.dir, g.String())
		_, err := os.Stat(filepath.Join(dir, manifestFile))
		if err == nil {
			whole++
		}
		if err == nil && whole <= c.keep || g.compare(latest) >= 0 {
			continue
		}
		if err == nil {
			if err := os.Remove(filepath.Join(dir, manifestFile)); err != nil {
				return err
			}
			if err := syncFolder(dir); err != nil {
				return err
			}
			c.step("old manifest removed")
		}
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
		c.step("old folder removed")
	}
	return nil
}
