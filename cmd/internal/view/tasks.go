package view

import (
	"fmt"
	"io"
	"slices"
	"strings"

	pb "trainmaster/proto/trainmaster/v1"
)

// Task is one line of `master tasks`.
type Task struct {
	Dataset  uint32       `json:"dataset"`
	Task     uint64       `json:"task"`
	State    string       `json:"state"` // pending, retry, set_aside
	Pass     uint32       `json:"pass"`
	Attempt  uint32       `json:"attempt"` // the last attempt; 0 if set aside
	Failures uint32       `json:"failures"`
	Losses   uint32       `json:"losses"`
	Holders  []taskHolder `json:"holders"`
	Holder   string       `json:"holder"` // the last trainer of a set-aside task
	Error    string       `json:"error"`  // its error
	Dropped  bool         `json:"dropped"`
}

// TaskStates are the words of --state, the first for all.
var TaskStates = []string{"all", "pending", "retry", "set_aside"}

// NewTask returns a task of a reply of the leader.
func NewTask(t *pb.TaskEntry) Task {
	e := Task{
		Dataset: t.GetDataset(), Task: t.GetIndex(), State: enumWord(t.GetState(), "TASK_STATE_"), Pass: t.GetPass(), Attempt: t.GetAttempt(),
		Failures: t.GetFailures(), Losses: t.GetLosses(), Holders: []taskHolder{}, Holder: t.GetLastHolder(), Error: t.GetLastError(), Dropped: t.GetDropped(),
	}
	for _, h := range t.GetHolders() {
		e.Holders = append(e.Holders, taskHolder{Trainer: h.GetTrainer(), Attempt: h.GetAttempt(), Age: h.GetAgeSeconds(), Prefetched: h.GetPrefetched()})
	}
	return e
}

// TasksTable writes tasks, the list of those in a state.
func TasksTable(w io.Writer, list []Task, state string) {
	if len(list) == 0 {
		fmt.Fprintf(w, "No task is %s.\n", map[string]string{"all": "pending, to be retried or set aside", "pending": "pending", "retry": "to be retried", "set_aside": "set aside"}[state])
		return
	}
	fmt.Fprintln(w, "DATASET\tTASK\tSTATE\tPASS\tATTEMPT\tFAILURES\tLOSSES\tTRAINER\tERROR")
	for _, t := range list {
		state, attempt, who := t.State, fmt.Sprint(t.Attempt), t.Holder
		switch {
		case t.Dropped:
			state, attempt = "dropped", "-"
		case t.State == "set_aside":
			state, attempt = "set aside", "-"
		}
		var holders []string
		for _, h := range t.Holders {
			holders = append(holders, h.Trainer)
		}
		if len(holders) > 0 {
			who = strings.Join(holders, ",")
		}
		fmt.Fprintf(w, "%d\t%d\t%s\t%d\t%s\t%d\t%d\t%s\t%s\n", t.Dataset, t.Task, state, t.Pass, attempt, t.Failures, t.Losses, who,
			strings.Join(slices.Collect(strings.FieldsSeq(t.Error)), " "))
	}
}
