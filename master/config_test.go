package master

import (
	"testing"

	"trainmaster/recordio"
	"trainmaster/taskqueue"
)

func TestChunksPerTask(t *testing.T) {
	tests := []struct{ trainers, explicit, chunks, want int }{
		{trainers: 8, chunks: 0, want: 1},
		{trainers: 8, chunks: 63, want: 1},
		{trainers: 8, chunks: 64, want: 1},
		{trainers: 8, chunks: 128, want: 2},
		{trainers: 1, chunks: 100, want: 12},
		{trainers: 8, chunks: 10_000_000, want: maxChunksOfTask},
		{trainers: 8, explicit: 7, chunks: 10, want: 7},
		{trainers: 8, explicit: 100_000, chunks: 10_000_000, want: 100_000},
	}
	for _, tt := range tests {
		c := Config{Trainers: tt.trainers, ChunksPerTask: tt.explicit}.withDefaults()
		if got := c.chunksPerTask(tt.chunks); got != tt.want {
			t.Errorf("%+v: got %d chunks for each task", tt, got)
		}
		if tt.explicit == 0 && tt.chunks >= tasksPerTrainer*tt.trainers && tt.chunks/c.chunksPerTask(tt.chunks) < tasksPerTrainer*tt.trainers {
			t.Errorf("%+v: fewer than %d tasks for each trainer", tt, tasksPerTrainer)
		}
	}
}

// Tasks returns the number of tasks that a report of the same chunks has.
func TestConfigTasksAgreesWithGroup(t *testing.T) {
	for _, trainers := range []int{1, 3, 8} {
		for _, chunks := range []int{1, 2, 24, 47, 48, 49, 65, 1000} {
			c := Config{Trainers: trainers}.withDefaults()
			table := taskqueue.NewTable(chunks)
			if err := table.Add(taskqueue.File{Path: "/data/a", Size: int64(chunks) * 100}, chunksOfFile(chunks)); err != nil {
				t.Fatal(err)
			}
			if err := c.group(table); err != nil {
				t.Fatal(err)
			}
			if got := c.Tasks(chunks); got != table.Tasks() {
				t.Errorf("%d chunks, %d trainers: found %d tasks, expected %d", chunks, trainers, got, table.Tasks())
			}
		}
	}
}

func chunksOfFile(n int) (chunks []recordio.Index) {
	offset := int64(0)
	for range n {
		next := recordio.Index{Offset: offset, Size: 10, Records: 1}
		chunks, offset = append(chunks, next), next.End()
	}
	return chunks
}

func TestConfigErrorNamesSetting(t *testing.T) {
	for field, c := range map[string]Config{
		"chunks-per-task": {ChunksPerTask: -1},
		"trainers":        {Trainers: -1},
		"linger":          {Linger: -1},
		"backup-workers":  {Sync: true, Backups: -1},
		"deterministic: expected it with synchronous":  {Deterministic: true},
		"deterministic: expected no backup-workers":    {Sync: true, Deterministic: true, Backups: 1},
		"deterministic: expected pass-mode barrier":    {Sync: true, Deterministic: true, Queue: taskqueue.Options{Rolling: true}},
		"deterministic: expected no speculation":       {Sync: true, Deterministic: true, Queue: taskqueue.Options{Speculate: true}},
		"backup-workers: expected 0 with asynchronous": {Backups: 1},
		"passes": {Queue: taskqueue.Options{Passes: -1}},
	} {
		if err := c.Validate(); err == nil || len(err.Error()) < len(field) || err.Error()[:len(field)] != field {
			t.Errorf("expected an error that begins with %s, got %v", field, err)
		}
	}
}

// A job that began with asynchronous updates must not continue as a synchronous job.
func TestUpdateModeIsJobSetting(t *testing.T) {
	for want, c := range map[string]Config{"async": {}, "sync": {Sync: true}} {
		if found := c.Settings()["update-mode"]; found != want {
			t.Errorf("update-mode: expected %q, found %q", want, found)
		}
	}
}
