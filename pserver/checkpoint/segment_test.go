package checkpoint

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Cleanup removes a segment when its checkpoint is removed and no other checkpoint names it. It keeps segments that the caller uses,
// segments of an unfinished checkpoint, and all segments if a manifest is damaged.
func TestUnnamedSegmentsAreRemoved(t *testing.T) {
	dir := t.TempDir()
	folder := Store{Place: Disk(dir)}.Shard(0)
	if err := folder.Prepare(); err != nil {
		t.Fatal(err)
	}
	if _, err := folder.CountStart(t.Context()); err != nil {
		t.Fatal(err)
	}
	full := writeCheckpoint(t, folder, Generation{1, 1}, nil, func(*Manifest) {})
	for sequence := range uint64(2) {
		writeCheckpoint(t, folder, Generation{1, 2 + sequence}, full, func(*Manifest) {})
	}
	writeCheckpoint(t, folder, Generation{1, 4}, nil, func(*Manifest) {})
	unfinished, err := folder.Begin(t.Context(), Generation{1, 5})
	if err != nil {
		t.Fatal(err)
	}
	cfg := writtenTable
	if _, err := unfinished.CreateTable(0, cfg, writtenRule, TableSizes{}, nil, nil); err != nil {
		t.Fatal(err)
	}
	left := func(want ...string) {
		t.Helper()
		found, err := filepath.Glob(filepath.Join(dir, "ps-0", "*-table-0"))
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, name := range found {
			got = append(got, strings.TrimSuffix(filepath.Base(name), "-table-0"))
		}
		if !slices.Equal(got, want) {
			t.Fatalf("segments %v, expected %v", got, want)
		}
	}
	step := func(keep []Generation, used ...string) {
		t.Helper()
		if err := folder.PruneTo(t.Context(), keep); err != nil {
			t.Fatal(err)
		}
		if err := folder.PruneSegments(t.Context(), used); err != nil {
			t.Fatal(err)
		}
	}
	step([]Generation{{1, 3}})
	left("00000001-00000001", "00000001-00000003", "00000001-00000004", "00000001-00000005")
	if _, err := folder.Open(t.Context(), Generation{1, 3}); err != nil {
		t.Fatal(err)
	}
	manifest := filepath.Join(dir, "ps-0", "00000001-00000003", ManifestFile)
	text, err := os.ReadFile(manifest)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(manifest, []byte("damaged"), 0o644); err != nil {
		t.Fatal(err)
	}
	step([]Generation{{1, 3}})
	left("00000001-00000001", "00000001-00000003", "00000001-00000004", "00000001-00000005")
	if err := os.WriteFile(manifest, text, 0o644); err != nil {
		t.Fatal(err)
	}
	step([]Generation{{1, 4}}, full.Name)
	left("00000001-00000001", "00000001-00000004", "00000001-00000005")
	step([]Generation{{1, 4}})
	left("00000001-00000004", "00000001-00000005")
	unfinished.Abandon(t.Context(), nil)
	left("00000001-00000004")
	if _, err := folder.Open(t.Context(), Generation{1, 4}); err != nil {
		t.Fatal(err)
	}
}
