package progress

import (
	"encoding/json"
	"fmt"

	"trainmaster/master/evaluation"
	"trainmaster/taskqueue"
)

// Progress is the progress of a job. It is the JSON value of [Annotation].
type Progress struct {
	Format int    `json:"format"`           // 1
	Status string `json:"status"`           // running, paused, ended, failed
	Reason string `json:"reason,omitempty"` // of the status

	Pass   int   `json:"pass"`   // of the first training dataset; 0: it is not registered yet
	Passes int   `json:"passes"` // 0: no limit
	Done   int64 `json:"done"`   // tasks of all training datasets and passes
	Tasks  int64 `json:"tasks"`  // 0: unknown, or no limit

	Workers int      `json:"workers"`           // running pods
	Servers int      `json:"servers"`           // running pods
	Waiting string   `json:"waiting,omitempty"` // why a pod does not run; empty: all run, or the cluster has no reason yet
	Figure  string   `json:"figure,omitempty"`  // of --best-metric
	Value   *float64 `json:"value,omitempty"`   // of the newest evaluation round with this figure
}

// Annotation is the annotation with the progress.
const Annotation = "trainmaster.io/progress"

const format = 1

// Of returns the progress of a job, without its pods. passes is the setting of the master. evaluated is the stored state of the evaluation; nil: there is none.
func Of(o *taskqueue.Overview, passes int, figure string, evaluated []byte) (Progress, error) {
	p := Progress{Format: format, Status: o.Status.String(), Reason: o.Reason, Passes: passes}
	endless := passes == 0
	for _, s := range o.Sets {
		if s.Kind != taskqueue.Training {
			continue
		}
		if p.Pass == 0 {
			p.Pass = int(s.Pass)
		}
		endless = endless || s.Online && !s.Closed
		p.Done += int64(max(s.Pass, 1)-1)*int64(s.Tasks) + int64(s.Done+s.SetAside)
		p.Tasks += int64(passes) * int64(s.Tasks)
	}
	if endless {
		p.Tasks = 0
	}
	if evaluated == nil {
		return p, nil
	}
	state, err := evaluation.Decode(evaluated)
	if err != nil {
		return p, err
	}
	for _, r := range state.History {
		if r.Score != nil {
			p.Figure, p.Value = figure, r.Score
		}
	}
	return p, nil
}

// Encode returns the value of the annotation.
func (p Progress) Encode() string {
	b, err := json.Marshal(p)
	if err != nil {
		panic(err) // numbers of evaluations are finite
	}
	return string(b)
}

// Decode reads a value of the annotation.
func Decode(text string) (p Progress, err error) {
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		return p, fmt.Errorf("annotation %s: expected JSON: %w", Annotation, err)
	}
	if p.Format != format {
		return p, fmt.Errorf("annotation %s: expected format %d, found %d: use the same version of the operator and the image", Annotation, format, p.Format)
	}
	return p, nil
}
