package checkpoint

import (
	"fmt"
	"slices"

	"trainmaster/pserver/model"
	"trainmaster/pserver/optimizer"
	"trainmaster/pserver/placement"
	"trainmaster/pserver/staleness"
	"trainmaster/pserver/table"
)

// The files of one checkpoint. docs/formats/parameter-server-checkpoint.md describes them.
const (
	WeightsFile   = "weights.safetensors"
	optimizerFile = "optimizer.safetensors"
	PushesFile    = "pushes.safetensors"
	ManifestFile  = "MANIFEST.json"
)

const manifestFormat = 6

// SlotFile is the file that has a slot of the optimizer's state.
func SlotFile(slot int) string {
	if slot == 0 {
		return optimizerFile
	}
	return fmt.Sprintf("optimizer-%d.safetensors", slot+1)
}

// Manifest is written last: a directory without a manifest is not a checkpoint.
type Manifest struct {
	Format int `json:"format"`
	Shard  int `json:"shard"`
	Generation
	// Set is the number of the set that the checkpoint belongs to.
	Set uint64 `json:"set"`
	// Job and JobID (hexadecimal) name the job, as in [Set]; empty if the server had no job id.
	Job       string           `json:"job,omitempty"`
	JobID     string           `json:"job_id,omitempty"`
	Mode      string           `json:"mode"`
	Version   uint64           `json:"version"`
	JobEpoch  uint32           `json:"job_epoch"`
	Optimizer optimizer.Config `json:"optimizer"`
	Staleness staleness.Bound  `json:"staleness,omitzero"`
	Placement Placement        `json:"placement"`
	Files     []Entry          `json:"files"`
	// Rows are the segments with the rows, by table.
	Rows []Rows `json:"rows,omitempty"`
	// Retired lists the trainers that the marks leave out; nil: none.
	Retired *Retired `json:"retired,omitempty"`
}

// Retired is the set of retired trainers of a job: incarnations below Floor, except Spared.
type Retired struct {
	Job    string   `json:"job"` // its id, in hexadecimal digits
	Floor  uint64   `json:"floor"`
	Spared []uint64 `json:"spared,omitempty"`
}

// Placement is the placement of the blocks at the cut.
type Placement struct {
	Epoch   uint32   `json:"epoch"`
	Shards  int      `json:"shards"`
	Tensors []Tensor `json:"tensors"`
	Owners  []uint32 `json:"owners"`

	Tables     []table.Config `json:"tables,omitempty"`
	SlotOwners [][]uint32     `json:"slot_owners,omitempty"` // by table
}

// Tensor is a tensor of the model.
type Tensor struct {
	Name  string `json:"name"`
	Shape []int  `json:"shape"`
}

// Entry is a file of the checkpoint.
type Entry struct {
	Name   string `json:"name"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
}

// The modes of a model: how gradients change it.
const (
	Async = model.Async
	Sync  = model.Sync
)

// NewManifest describes a model. The caller and the [Writer] set the other fields.
func NewManifest(o optimizer.Config, s staleness.Bound, mode string, placed *placement.Table) *Manifest {
	tensors := make([]Tensor, len(placed.Tensors))
	for i, t := range placed.Tensors {
		tensors[i] = Tensor(t)
	}
	return &Manifest{Format: manifestFormat, Mode: mode, Optimizer: o, Staleness: s, Placement: Placement{placed.Epoch, placed.Shards, tensors, placed.Owners, placed.Sparse, placed.SlotOwners}}
}

// check returns the placement, or an error if this version cannot read the manifest.
func (m *Manifest) check() (*placement.Table, error) {
	if m.Format != manifestFormat {
		return nil, fmt.Errorf("manifest has format %d: this version reads %d", m.Format, manifestFormat)
	}
	if m.Mode != Sync && m.Mode != Async {
		return nil, fmt.Errorf("manifest has mode %q", m.Mode)
	}
	table := &placement.Table{Epoch: m.Placement.Epoch, Shards: m.Placement.Shards, Owners: m.Placement.Owners, Sparse: m.Placement.Tables, SlotOwners: m.Placement.SlotOwners}
	for _, t := range m.Placement.Tensors {
		table.Tensors = append(table.Tensors, placement.Tensor(t))
	}
	if err := table.Check(); err != nil {
		return nil, err
	}
	if m.Shard < 0 || m.Shard >= table.Shards {
		return nil, fmt.Errorf("manifest is of shard %d of %d", m.Shard, table.Shards)
	}
	slots, err := m.slots()
	if err != nil {
		return nil, err
	}
	files := []string{WeightsFile, optimizerFile, PushesFile}
	for slot := range slots {
		files = append(files, SlotFile(slot))
	}
	for k := range table.Sparse {
		files = append(files, slotsFile(k))
	}
	if len(m.Rows) != len(table.Sparse) {
		return nil, fmt.Errorf("manifest has the rows of %d tables: expected %d", len(m.Rows), len(table.Sparse))
	}
	for k, rows := range m.Rows {
		if rows.Full == nil {
			return nil, fmt.Errorf("it names no full segment of table %q", table.Sparse[k].Name)
		}
	}
	for _, s := range m.segments() {
		if err := s.check(m.Optimizer); err != nil {
			return nil, err
		}
	}
	for _, name := range files {
		if !slices.ContainsFunc(m.Files, func(e Entry) bool { return e.Name == name }) {
			return nil, fmt.Errorf("it does not name %s, which optimizer %s has", name, m.Optimizer.Kind)
		}
	}
	return table, nil
}

// segments returns the segments of all tables.
func (m *Manifest) segments() (list []*Segment) {
	for _, rows := range m.Rows {
		list = append(list, rows.Segments()...)
	}
	return list
}

// Bytes returns the size of all files, with the files of the segments.
func (m *Manifest) Bytes() int64 {
	n := (&Segment{Files: m.Files}).Bytes()
	for _, s := range m.segments() {
		n += s.Bytes()
	}
	return n
}

// slots names the values of the optimizer state per parameter.
func (m *Manifest) slots() ([]string, error) {
	o := m.Optimizer
	if err := o.Validate(); err != nil {
		return nil, err
	}
	return o.Rule().Slots(), nil
}
