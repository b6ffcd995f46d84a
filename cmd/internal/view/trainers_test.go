package view

import (
	"strings"
	"testing"

	pb "trainmaster/proto/trainmaster/v1"
)

func TestTrainersTableHasStates(t *testing.T) {
	for want, entry := range map[string]*pb.TrainerEntry{
		"joined":    {Joined: true},
		"connected": {},
		"draining":  {Joined: true, Draining: true},
		"lost":      {Joined: true, Draining: true, Lost: true},
	} {
		var text strings.Builder
		TrainersTable(&text, []Trainer{NewTrainer(entry)})
		if _, row, _ := strings.Cut(text.String(), "\n"); strings.Split(row, "\t")[2] != want {
			t.Errorf("expected %s, found %q", want, text.String())
		}
	}
}
