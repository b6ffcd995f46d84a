package main

import (
	"testing"

	"trainmaster/cmd/internal/cli"
)

func TestBenchUsage(t *testing.T) {
	tests := []struct {
		args []string
		word string
	}{
		{[]string{"bench", "queue", "--via", "pigeon"}, `found "pigeon"`},
		{[]string{"bench", "queue", "--callers", "0"}, "callers"},
		{[]string{"bench", "queue", "--seconds", "0"}, "seconds"},
		{[]string{"bench", "queue", "--rounds", "0"}, "rounds"},
		{[]string{"bench", "queue", "--tasks", "many"}, "--tasks"},
		{[]string{"bench", "recovery", "--tasks", "0"}, "--tasks"},
		{[]string{"bench", "data", "--records", "0"}, "--records: expected 1 or more, found 0"},
		{[]string{"bench", "data", "--store", "s3://bucket/train/*"}, "--store: expected a URL with endpoint=http://host:port"},
		{[]string{"bench", "ps", "--runs", "0"}, "runs"},
		{[]string{"bench", "ps", "--trainers", "1,0"}, "trainers"},
	}
	for _, tt := range tests {
		runArgs(t, tt.args...).wants(t, cli.ExitUsage, tt.word)
	}
}
