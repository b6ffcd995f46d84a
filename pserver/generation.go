package pserver

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"trainmaster/pserver/optimizer"
	"trainmaster/pserver/placement"
)

// The files of one checkpoint. docs/formats/parameter-server-checkpoint.md describes them.
const (
	weightsFile   = "weights.safetensors"
	optimizerFile = "optimizer.safetensors"
	pushesFile    = "pushes.safetensors"
	manifestFile  = "MANIFEST.json"
	startsFile    = "STARTS"

	// The format of a manifest is 1 when its optimizer is plain: versions that know no other can read it.
	plainFormat    = 1
	manifestFormat = 2
)

// slotFile is the file that has a slot of the optimizer's state.
func slotFile(slot int) string {
	if slot == 0 {
		return optimizerFile
	}
	return fmt.Sprintf("optimizer-%d.safetensors", slot+1)
}

// generation names a checkpoint: the start of the server that wrote it, and its
// number within that start. A later start's are always newer, so that a server
// that lost its lease and writes on is never preferred to its successor.
type generation struct {
	start    uint64
	sequence uint64
}

func (g generation) String() string { return fmt.Sprintf("%08d-%08d", g.start, g.sequence) }

func (g generation) compare(other generation) int {
	return slices.Compare([]uint64{g.start, g.sequence}, []uint64{other.start, other.sequence})
}

func parseGeneration(name string) (g generation, ok bool) {
	start, sequence, found := strings.Cut(name, "-")
	var err1, err2 error
	g.start, err1 = strconv.ParseUint(start, 10, 64)
	g.sequence, err2 = strconv.ParseUint(sequence, 10, 64)
	return g, found && err1 == nil && err2 == nil && g.String() == name
}

// generations lists the folders of checkpoints, whole or not, the newest first.
func generations(dir string) ([]generation, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var list []generation
	for _, e := range entries {
		if g, ok := parseGeneration(e.Name()); ok && e.IsDir() {
			list = append(list, g)
		}
	}
	slices.SortFunc(list, func(a, b generation) int { return b.compare(a) })
	return list, nil
}

// manifest is written last: a folder without one is not a checkpoint.
type manifest struct {
	Format    int               `json:"format"`
	Shard     int               `json:"shard"`
	Start     uint64            `json:"start"`
	Sequence  uint64            `json:"sequence"`
	Mode      string            `json:"mode"`
	Version   uint64            `json:"version"`
	JobEpoch  uint32            `json:"job_epoch"`
	Optimizer optimizer.Config  `json:"optimizer"`
	Placement manifestPlacement `json:"placement"`
	Files     []manifestEntry   `json:"files"`
}

type manifestPlacement struct {
	Epoch   uint32           `json:"epoch"`
	Shards  int              `json:"shards"`
	Tensors []manifestTensor `json:"tensors"`
	Owners  []uint32         `json:"owners"`
}

type manifestTensor struct {
	Name  string `json:"name"`
	Shape []int  `json:"shape"`
}

type manifestEntry struct {
	Name   string `json:"name"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
}

func newManifest(m *model, shard int, g generation, c *cut) *manifest {
	tensors := make([]manifestTensor, len(m.table.Tensors))
	for i, t := range m.table.Tensors {
		tensors[i] = manifestTensor(t)
	}
	format := manifestFormat
	if m.optimizer.Plain() {
		format = plainFormat
	}
	return &manifest{
		Format: format, Shard: shard, Start: g.start, Sequence: g.sequence, Mode: modeName(m.sync), Version: c.version, JobEpoch: c.jobEpoch,
		Optimizer: m.optimizer,
		Placement: manifestPlacement{m.table.Epoch, m.table.Shards, tensors, m.table.Owners},
	}
}

// model is the model that the manifest describes, checked.
func (m *manifest) model() (*model, error) {
	if m.Format < plainFormat || m.Format > manifestFormat {
		return nil, fmt.Errorf("manifest has format %d: this version reads %d to %d", m.Format, plainFormat, manifestFormat)
	}
	if m.Mode != modeName(true) && m.Mode != modeName(false) {
		return nil, fmt.Errorf("manifest has mode %q", m.Mode)
	}
	table := &placement.Table{Epoch: m.Placement.Epoch, Shards: m.Placement.Shards, Owners: m.Placement.Owners}
	for _, t := range m.Placement.Tensors {
		table.Tensors = append(table.Tensors, placement.Tensor(t))
	}
	if err := table.Check(); err != nil {
		return nil, err
	}
	described, err := newModel(m.Optimizer, m.Mode == modeName(true), table)
	if err != nil {
		return nil, err
	}
	for slot := range described.rule.Slots() {
		if !m.names(slotFile(slot)) {
			return nil, fmt.Errorf("%s is of optimizer %s and does not name %s", manifestFile, m.Optimizer.Kind, slotFile(slot))
		}
	}
	return described, nil
}

// counted says whether the checkpoint has the number of updates of every block.
// Plain rules have no use for it.
func (m *manifest) counted() bool { return m.Format > plainFormat }

func (m *manifest) names(file string) bool {
	return slices.ContainsFunc(m.Files, func(e manifestEntry) bool { return e.Name == file })
}

// sealed is what lies in the file: a manifest and the digest of its very bytes.
type sealed struct {
	SHA256   string          `json:"sha256"`
	Manifest json.RawMessage `json:"manifest"`
}

func (m *manifest) encode() ([]byte, error) {
	inner, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	return fmt.Appendf(nil, "{\"sha256\": \"%x\",\n\"manifest\": %s}\n", sha256.Sum256(inner), inner), nil
}

func decodeManifest(text []byte) (*manifest, error) {
	var s sealed
	if err := json.Unmarshal(text, &s); err != nil {
		return nil, err
	}
	if got := fmt.Sprintf("%x", sha256.Sum256(s.Manifest)); got != s.SHA256 {
		return nil, fmt.Errorf("SHA-256 starts with %.12s, the file says %.12s", got, s.SHA256)
	}
	var m manifest
	if err := json.Unmarshal(s.Manifest, &m); err != nil {
		return nil, err
	}
	return &m, nil
}

// readManifest reads one and checks the digests of its files. Without a
// manifest the error is fs.ErrNotExist.
func readManifest(dir string) (*manifest, error) {
	data, err := os.ReadFile(filepath.Join(dir, manifestFile))
	if err != nil {
		return nil, err
	}
	m, err := decodeManifest(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", manifestFile, err)
	}
	for _, name := range []string{weightsFile, optimizerFile, pushesFile} {
		if !m.names(name) {
			return nil, fmt.Errorf("%s does not name %s", manifestFile, name)
		}
	}
	for _, e := range m.Files {
		if err := e.verify(dir); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (e manifestEntry) verify(dir string) error {
	f, err := os.Open(filepath.Join(dir, e.Name))
	if err != nil {
		return err
	}
	defer f.Close()
	sum := sha256.New()
	n, err := io.Copy(sum, f)
	if err != nil {
		return fmt.Errorf("read %s: %w", e.Name, err)
	}
	if got := hex.EncodeToString(sum.Sum(nil)); n != e.Size || got != e.SHA256 {
		return fmt.Errorf("%s has %d bytes and a SHA-256 that starts with %.12s, the manifest says %d and %.12s", e.Name, n, got, e.Size, e.SHA256)
	}
	return nil
}

// outFile is a file that appears under its name only when it is whole and on the disk.
type outFile struct {
	*os.File
	path string
	sum  hash.Hash
	size int64
}

const temporary = ".tmp"

func createFile(dir, name string) (*outFile, error) {
	path := filepath.Join(dir, name)
	f, err := os.Create(path + temporary)
	if err != nil {
		return nil, err
	}
	return &outFile{File: f, path: path, sum: sha256.New()}, nil
}

func (f *outFile) Write(p []byte) (int, error) {
	n, err := f.File.Write(p)
	f.sum.Write(p[:n])
	f.size += int64(n)
	return n, err
}

// publish syncs and renames the file; the folder is the caller's to sync.
func (f *outFile) publish() (manifestEntry, error) {
	if err := f.Sync(); err != nil {
		return manifestEntry{}, err
	}
	if err := f.Close(); err != nil {
		return manifestEntry{}, err
	}
	if err := os.Rename(f.path+temporary, f.path); err != nil {
		return manifestEntry{}, err
	}
	return manifestEntry{filepath.Base(f.path), f.size, hex.EncodeToString(f.sum.Sum(nil))}, nil
}

func syncFolder(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// countStart adds one to the number of starts kept in dir, and returns it when it is on the disk.
func countStart(dir string) (uint64, error) {
	starts, err := readStarts(dir)
	if err != nil {
		return 0, err
	}
	list, err := generations(dir)
	if err != nil {
		return 0, err
	}
	if len(list) > 0 {
		starts = max(starts, list[0].start) // the file may be lost, and they are not
	}
	starts++
	f, err := createFile(dir, startsFile)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	if _, err := fmt.Fprintln(f, starts); err != nil {
		return 0, err
	}
	if _, err := f.publish(); err != nil {
		return 0, err
	}
	return starts, syncFolder(dir)
}

func readStarts(dir string) (uint64, error) {
	path := filepath.Join(dir, startsFile)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	} else if err != nil {
		return 0, err
	}
	starts, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s holds %q: expected the number of starts; if the file was damaged, write a number greater than any that the folder names beside it start with", path, text)
	}
	return starts, nil
}

// shardEpoch is the number of a start as a header has room for it: never 0,
// and another one for the next 65,534 starts.
func shardEpoch(start uint64) uint16 { return uint16((start-1)%65535) + 1 }
