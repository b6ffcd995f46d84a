package drill

import (
	"fmt"
	"io"
	"time"
)

// Report is the result of a drill.
type Report struct {
	Drill        string   `json:"drill"`
	Victim       Victim   `json:"victim"`
	Lasted       float64  `json:"lasted_s"`      // duration of the fault; 0: it cannot be undone
	TookOver     *Leader  `json:"took_over"`     // the next leader; null: the leader stayed
	StoodStill   float64  `json:"stood_still_s"` // longest time without a commit, from the fault until the job continued
	Pending      int      `json:"pending"`       // tasks that trainers held at the fault
	Resent       []Resent `json:"resent"`        // tasks that were dispatched again since
	Lost         int      `json:"lost"`
	CountedTwice int      `json:"counted_twice"`
	Problems     []string `json:"problems"` // other problems that the verification found
}

// Victim is the process or store with the fault.
type Victim struct {
	Process string `json:"process"`
	PID     int    `json:"pid"`     // 0: not a process
	Address string `json:"address"` // of a leader
	Term    uint64 `json:"term"`    // of a leader
}

// Leader is the leader after the fault.
type Leader struct {
	Process string  `json:"process"` // empty: not a process of this machine
	Address string  `json:"address"`
	Term    uint64  `json:"term"`
	After   float64 `json:"after_s"` // from the fault to its first commit
}

// Resent is a task that was dispatched again.
type Resent struct {
	Dataset  int    `json:"dataset"`
	Pass     uint32 `json:"pass"`
	Position int    `json:"position"`
	Attempt  uint32 `json:"attempt"` // of the new dispatch
	From     string `json:"from"`
	To       string `json:"to"`
	Why      string `json:"why"` // returned, failed, timed out
}

// OK reports whether nothing was lost or counted twice.
func (r *Report) OK() bool { return r.Lost == 0 && r.CountedTwice == 0 && len(r.Problems) == 0 }

const resentShown = 10

// Table writes the report as text, in cells that are separated by tabs.
func (r *Report) Table(w io.Writer) {
	fmt.Fprintf(w, "drill\t%s\n", r.Drill)
	fmt.Fprintf(w, "victim\t%s\n", r.Victim)
	if r.Lasted > 0 {
		fmt.Fprintf(w, "lasted\t%s\n", seconds(r.Lasted))
	}
	if r.TookOver == nil {
		fmt.Fprintf(w, "took over\tnone: the leader stayed\n")
	} else {
		fmt.Fprintf(w, "took over\t%s, after %s\n", r.TookOver, seconds(r.TookOver.After))
	}
	fmt.Fprintf(w, "stood still\t%s at most\n", seconds(r.StoodStill))
	fmt.Fprintf(w, "trainers held\t%s when it began\n", tasks(r.Pending))
	fmt.Fprintf(w, "re-sent\t%s\n", tasks(len(r.Resent)))
	for i, one := range r.Resent {
		if i == resentShown {
			fmt.Fprintf(w, "\tand %d more\n", len(r.Resent)-i)
			break
		}
		fmt.Fprintf(w, "\tpass %d, position %d: %s by %s, given to %s\n", one.Pass, one.Position, one.Why, one.From, one.To)
	}
	fmt.Fprintf(w, "lost\t%s\n", count(r.Lost))
	fmt.Fprintf(w, "counted twice\t%s\n", count(r.CountedTwice))
	for _, problem := range r.Problems {
		fmt.Fprintf(w, "problem\t%s\n", problem)
	}
}

func (v Victim) String() string {
	text := v.Process
	if v.PID != 0 {
		text += fmt.Sprintf(" (process %d)", v.PID)
	}
	if v.Address != "" {
		text += fmt.Sprintf(", leader at %s in term %d", v.Address, v.Term)
	}
	return text
}

func (l *Leader) String() string {
	text := fmt.Sprintf("%s in term %d", l.Address, l.Term)
	if l.Process != "" {
		text = l.Process + " at " + text
	}
	return text
}

func tasks(n int) string {
	if n == 1 {
		return "1 task"
	}
	return fmt.Sprintf("%d tasks", n)
}

func count(n int) string {
	if n == 0 {
		return "nothing"
	}
	return fmt.Sprint(n)
}

func seconds(s float64) string {
	return time.Duration(s * float64(time.Second)).Round(time.Millisecond).String()
}
