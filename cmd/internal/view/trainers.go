package view

import (
	"fmt"
	"io"
	"math"

	"trainmaster/cmd/internal/cli"
	pb "trainmaster/proto/trainmaster/v1"
)

// Trainer is one line of what `master trainers` says.
type Trainer struct {
	ID               string   `json:"id"`
	Ordinal          uint32   `json:"ordinal"`
	Incarnation      uint64   `json:"incarnation"`
	Address          string   `json:"address"`
	Joined           bool     `json:"joined"`
	Draining         bool     `json:"draining"`
	Lost             bool     `json:"lost"`
	Silent           float64  `json:"silent_s"`
	Tasks            []uint64 `json:"tasks"`
	RecordsTrained   uint64   `json:"records_trained"`
	RecordsPerSecond float64  `json:"records_per_s"`
	Loss             *float64 `json:"loss"` // null: none was reported, or it is no number any more
}

// NewTrainer returns a trainer of a reply of the leader.
func NewTrainer(t *pb.TrainerEntry) Trainer {
	e := Trainer{
		ID: t.GetId(), Ordinal: t.GetOrdinal(), Incarnation: t.GetIncarnation(), Address: t.GetAddress(), Joined: t.GetJoined(), Draining: t.GetDraining(), Lost: t.GetLost(),
		Silent: t.GetSilentSeconds(), Tasks: append([]uint64{}, t.GetTasks()...), RecordsTrained: t.GetRecordsTrained(), RecordsPerSecond: t.GetRecordsPerSecond(), Loss: t.Loss,
	}
	if loss := t.GetLoss(); math.IsNaN(loss) || math.IsInf(loss, 0) {
		e.Loss = nil
	}
	return e
}

// TrainersTable writes trainers.
func TrainersTable(w io.Writer, list []Trainer) {
	if len(list) == 0 {
		fmt.Fprintln(w, "No trainer has a session.")
		return
	}
	fmt.Fprintln(w, "TRAINER\tORDINAL\tSTATE\tTASKS\tRECORDS\tRECORDS/S\tLOSS\tSILENT\tADDRESS")
	for _, t := range list {
		state, loss := "joined", "-"
		switch {
		case t.Lost:
			state = "lost"
		case t.Draining:
			state = "draining"
		case !t.Joined:
			state = "connected"
		}
		if t.Loss != nil {
			loss = fmt.Sprintf("%.4g", *t.Loss)
		}
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", t.ID, t.Ordinal, state, listed(t.Tasks), cli.Thousands(t.RecordsTrained),
			cli.Thousands(uint64(math.Round(t.RecordsPerSecond))), loss, cli.Span(t.Silent), t.Address)
	}
}

// listed writes a few numbers as 1,2,3; "-" for none.
func listed(list []uint64) string {
	text := "-"
	for i, n := range list {
		if i == 0 {
			text = fmt.Sprint(n)
			continue
		}
		text += fmt.Sprintf(",%d", n)
	}
	return text
}
