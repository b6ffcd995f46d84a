package master

import (
	"testing"

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

func TestConfigNamesWhatIsWrong(t *testing.T) {
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

// A job that began with asynchronous gradients must not be led as a synchronous one.
func TestUpdateModeIsASettingOfTheJob(t *testing.T) {
	for want, c := range map[string]Config{"async": {}, "sync": {Sync: true}} {
		if found := c.Settings()["update-mode"]; found != want {
			t.Errorf("update-mode: expected %q, found %q", want, found)
		}
	}
}
