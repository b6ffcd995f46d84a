package reference

import (
	"encoding/json"
	"fmt"
	"os"

	"trainmaster/taskqueue"
)

// Journal is a file with one line of JSON for each task that a trainer trained completely, written before the report to
// the master. It can be compared with the counts of the master. Several trainers may append to one file, and a restarted
// trainer continues the file.
type Journal struct {
	file *os.File
}

// Entry is a line of a journal.
type Entry struct {
	Trainer  string            `json:"trainer"`
	Pass     taskqueue.Pass    `json:"pass"`
	Position int               `json:"position"` // in the order of the pass
	Attempt  taskqueue.Attempt `json:"attempt"`
	Index    int               `json:"index"` // of the task
	Base     int64             `json:"base"`  // records of the task that an earlier attempt trained, and that a checkpoint has
	Records  int               `json:"records"`
}

// OpenJournal opens the file at path for appending, and creates it if it does not exist.
func OpenJournal(path string) (*Journal, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, fmt.Errorf("journal: expected a file that can be written: %w", err)
	}
	return &Journal{file}, nil
}

// Close closes the file.
func (l *Journal) Close() error { return l.file.Close() }

// append writes a line in one call, so that lines of several processes do not mix and a killed process leaves no partial line. The
// line survives the end of the process, but can be lost if the machine fails, since append does not sync.
func (l *Journal) append(trainer string, report TaskReport) error {
	task := report.Task
	line, err := json.Marshal(Entry{
		Trainer:  trainer,
		Pass:     task.Token.Pass,
		Position: task.Token.Position,
		Attempt:  task.Token.Attempt,
		Index:    task.Index,
		Base:     report.Base,
		Records:  report.Records,
	})
	if err != nil {
		return fmt.Errorf("encode journal line: %w", err)
	}
	if _, err := l.file.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("append to journal: %w", err)
	}
	return nil
}
