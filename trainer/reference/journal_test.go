package reference_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"trainmaster/taskqueue"
	"trainmaster/trainer/model"
	"trainmaster/trainer/reference"
)

// TestJournal: lines have the documented fields, are written before the finish is sent, and follow earlier lines.
func TestJournal(t *testing.T) {
	train, _ := digits(t)
	c := newCoordinator(t, writeTable(t, train[:50], 20), taskqueue.Options{Passes: 1})
	path := filepath.Join(t.TempDir(), "journal")
	const earlier = `{"trainer":"trainer-0","pass":9,"position":8,"attempt":7,"index":6,"records":5}` + "\n"
	if err := os.WriteFile(path, []byte(earlier), 0o600); err != nil {
		t.Fatal(err)
	}
	link := c.join("trainer-0")
	trainer := &reference.Trainer{ID: "trainer-0", Model: newModel(t, model.Softmax, 0), BatchSize: 8,
		Tasks: watched{trainerLink: link, journal: path}, Parameters: &shelf{rate: 0.1}, Journal: openJournal(t, path)}
	runAll(t, []*reference.Trainer{trainer})
	entries := readJournal(t, path)
	if want := (reference.Entry{Trainer: "trainer-0", Pass: 9, Position: 8, Attempt: 7, Index: 6, Records: 5}); entries[0] != want {
		t.Errorf("earlier line: got %+v, expected %+v", entries[0], want)
	}
	var positions, indices, records []int
	for _, entry := range entries[1:] {
		positions, indices, records = append(positions, entry.Position), append(indices, entry.Index), append(records, entry.Records)
		if entry.Pass != 1 || entry.Attempt != 1 || entry.Trainer != "trainer-0" {
			t.Errorf("line is %+v, want pass 1, attempt 1, trainer-0", entry)
		}
	}
	slices.Sort(indices)
	slices.Sort(records)
	if fmt.Sprint(positions, indices, records) != "[0 1 2] [0 1 2] [10 20 20]" {
		t.Errorf("positions %v, indices %v, records %v", positions, indices, records)
	}
}

func TestJournalCannotBeWritten(t *testing.T) {
	if _, err := reference.OpenJournal(filepath.Join(t.TempDir(), "missing", "journal")); err == nil {
		t.Error("journal in a missing directory: expected an error")
	}
	train, _ := digits(t)
	c := newCoordinator(t, writeTable(t, train[:10], 10), taskqueue.Options{Passes: 1})
	journal, err := reference.OpenJournal(filepath.Join(t.TempDir(), "journal"))
	if err != nil {
		t.Fatal(err)
	}
	if err := journal.Close(); err != nil {
		t.Fatal(err)
	}
	trainer := &reference.Trainer{ID: "trainer-0", Model: newModel(t, model.Softmax, 0), BatchSize: 8,
		Tasks: c.join("trainer-0"), Parameters: &shelf{rate: 0.1}, Journal: journal}
	if err := trainer.Run(within(t)); err == nil {
		t.Error("Run without its journal: expected an error")
	}
	if o := c.queue.Overview().Sets[0]; o.Done != 0 {
		t.Errorf("expected no counted task outside the journal, found %d", o.Done)
	}
}
