package checkpoint

import (
	"slices"
	"strings"
	"testing"

	"trainmaster/pserver/optimizer"
	"trainmaster/pserver/placement"
	"trainmaster/pserver/staleness"
	"trainmaster/pserver/table"
)

// A manifest of another format, or without a file that its optimizer or its tables need, is refused.
func TestManifestIsChecked(t *testing.T) {
	of := func(o optimizer.Config) *Manifest {
		if err := o.Validate(); err != nil {
			t.Fatal(err)
		}
		table, err := placement.New([]placement.Tensor{{Name: "w", Shape: []int{10}}}, 1)
		if err != nil {
			t.Fatal(err)
		}
		m := NewManifest(o, staleness.Bound{}, Async, table)
		for _, name := range []string{WeightsFile, SlotFile(0), SlotFile(1), PushesFile} {
			m.Files = append(m.Files, Entry{Name: name})
		}
		return m
	}
	adam := of(optimizer.Config{Kind: optimizer.Adam})
	tables := of(optimizer.Config{Kind: optimizer.SGD, LearningRate: 0.1})
	tables.Files = append(tables.Files, Entry{Name: "table-0-slots.safetensors"})
	tables.Placement.Tables, tables.Placement.SlotOwners = []table.Config{{Name: "t", Dim: 1, Init: table.Zeros, Admission: 1}}, [][]uint32{make([]uint32, table.Slots)}
	full := &Segment{Name: "00000001-00000001-table-0"}
	for _, name := range segmentFiles(tables.Optimizer) {
		full.Files = append(full.Files, Entry{Name: name})
	}
	tables.Rows = []Rows{{Full: full}}
	if _, err := tables.check(); err != nil {
		t.Error(err)
	}
	for want, rows := range map[string][]Rows{
		"the rows of 0 tables: expected 1": nil,
		`no full segment of table "t"`:     {{Delta: full}},
		`segment "../other"`:               {{Full: &Segment{Name: "../other", Files: full.Files}}},
		"does not name rows.safetensors of segment 00000001-00000002-table-0": {{Full: full, Delta: &Segment{Name: "00000001-00000002-table-0"}}},
	} {
		m := *tables
		m.Rows = rows
		if _, err := m.check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, expected %q", err, want)
		}
	}
	for want, change := range map[string]func(*Manifest){
		"format 5: this version reads 6":              func(m *Manifest) { m.Format = 5 },
		"does not name optimizer-2.safetensors":       func(m *Manifest) { m.Files = slices.Delete(slices.Clone(m.Files), 2, 3) },
		"does not name pushes.safetensors":            func(m *Manifest) { m.Files = m.Files[:3] },
		"shard 1 of 1":                                func(m *Manifest) { m.Shard = 1 },
		`optimizer "lion": expected`:                  func(m *Manifest) { m.Optimizer.Kind = "lion" },
		`optimizer "adam": beta1 is 2: expected 0 or`: func(m *Manifest) { m.Optimizer.Beta1 = 2 },
	} {
		m := *adam
		change(&m)
		if _, err := m.check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, expected %q", err, want)
		}
	}
}
