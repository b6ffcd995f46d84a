package main

import (
	"context"
	"fmt"
	"io"
	"math"

	"github.com/spf13/cobra"

	pb "trainmaster/proto/trainmaster/v1"
)

// trainerEntry is one line of what `master trainers` says.
type trainerEntry struct {
	ID               string   `json:"id"`
	Ordinal          uint32   `json:"ordinal"`
	Incarnation      uint64   `json:"incarnation"`
	Address          string   `json:"address"`
	Joined           bool     `json:"joined"`
	Draining         bool     `json:"draining"`
	Silent           float64  `json:"silent_s"`
	Tasks            []uint64 `json:"tasks"`
	RecordsTrained   uint64   `json:"records_trained"`
	RecordsPerSecond float64  `json:"records_per_s"`
	Loss             *float64 `json:"loss"` // null: none was reported, or it is no number any more
}

func trainersCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "trainers",
		Short: "List the trainers of a job",
		Long: `Trainers lists the trainers of a job, as the leader reports them: the tasks of each trainer, its speed, and whether it is
being drained.`,
		Example: `  master trainers
  # trainers that have been silent for more than five seconds
  master trainers -o json | jq '.[] | select(.silent_s > 5) | .id'`,
	}
	_, open := addLeaderFlags(cmd)
	format := addOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		l, err := open(cmd.Context())
		if err != nil {
			return err
		}
		defer l.hangUp()
		list, err := askTrainers(cmd.Context(), l)
		if err != nil {
			return err
		}
		return render(cmd.OutOrStdout(), *format, list, func(w io.Writer) { trainersTable(w, list) })
	}
	return cmd
}

func askTrainers(ctx context.Context, l *leader) ([]trainerEntry, error) {
	list := []trainerEntry{}
	for req := (&pb.ListTrainersRequest{Job: l.job}); ; {
		err := l.ask(ctx, func(ctx context.Context, o pb.OperatorClient) error {
			reply, err := o.ListTrainers(ctx, req)
			for _, t := range reply.GetTrainers() {
				list = append(list, newTrainerEntry(t))
			}
			req.PageToken = reply.GetNextPageToken()
			return err
		})
		if err != nil || req.PageToken == "" {
			return list, err
		}
	}
}

func newTrainerEntry(t *pb.TrainerEntry) trainerEntry {
	e := trainerEntry{
		ID: t.GetId(), Ordinal: t.GetOrdinal(), Incarnation: t.GetIncarnation(), Address: t.GetAddress(), Joined: t.GetJoined(), Draining: t.GetDraining(),
		Silent: t.GetSilentSeconds(), Tasks: append([]uint64{}, t.GetTasks()...), RecordsTrained: t.GetRecordsTrained(), RecordsPerSecond: t.GetRecordsPerSecond(), Loss: t.Loss,
	}
	if loss := t.GetLoss(); math.IsNaN(loss) || math.IsInf(loss, 0) {
		e.Loss = nil
	}
	return e
}

func trainersTable(w io.Writer, list []trainerEntry) {
	if len(list) == 0 {
		fmt.Fprintln(w, "No trainer has a session.")
		return
	}
	fmt.Fprintln(w, "TRAINER\tORDINAL\tSTATE\tTASKS\tRECORDS\tRECORDS/S\tLOSS\tSILENT\tADDRESS")
	for _, t := range list {
		state, loss := "joined", "-"
		switch {
		case t.Draining:
			state = "draining"
		case !t.Joined:
			state = "connected"
		}
		if t.Loss != nil {
			loss = fmt.Sprintf("%.4g", *t.Loss)
		}
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", t.ID, t.Ordinal, state, numbers(t.Tasks), thousands(t.RecordsTrained),
			thousands(uint64(math.Round(t.RecordsPerSecond))), loss, span(t.Silent), t.Address)
	}
}

// numbers writes a few numbers as 1,2,3; "-" for none.
func numbers(list []uint64) string {
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
