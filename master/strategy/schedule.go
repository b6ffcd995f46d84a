package strategy

import (
	"fmt"
	"math"

	"trainmaster/master/evaluation"
)

// Shape is the form of a schedule.
type Shape string

// The shapes of schedules.
const (
	Constant Shape = "constant"
	Step     Shape = "step"
	Cosine   Shape = "cosine"
	Plateau  Shape = "plateau"
)

// Schedule has the settings of the value of a hyper-parameter.
type Schedule struct {
	Shape    Shape
	Value    float64         // at the start
	WarmUp   uint64          // steps of a linear increase to the start
	Every    uint64          // steps between two changes of a cosine or a warm-up
	Steps    uint64          // between two reductions of a step, or length of a cosine.
	Factor   float64         // of each reduction of a step or a plateau
	End      float64         // last value of a cosine
	Least    float64         // lowest value of a step or a plateau.
	Figure   evaluation.Goal // for a plateau
	Patience int             // rounds without a better figure before a plateau is reduced
}

// at returns the value at a step, after a number of reductions of a plateau, and the reason for it.
func (s *Schedule) at(step uint64, reductions int) (value float64, reason string) {
	step -= step % s.Every
	after := step - min(step, s.WarmUp)
	switch s.Shape {
	case Step:
		n := after / s.Steps
		value, reason = max(s.Least, s.Value*math.Pow(s.Factor, float64(n))), fmt.Sprintf("step: %d reductions", n)
	case Cosine:
		part := float64(min(after, s.Steps)) / float64(s.Steps)
		value, reason = s.End+(s.Value-s.End)*(1+math.Cos(math.Pi*part))/2, fmt.Sprintf("cosine: step %d of %d", min(after, s.Steps), s.Steps)
	case Plateau:
		value, reason = max(s.Least, s.Value*math.Pow(s.Factor, float64(reductions))), fmt.Sprintf("plateau: %d reductions", reductions)
	default:
		value, reason = s.Value, "constant"
	}
	//guard:warm-up
	if step < s.WarmUp {
		part := min(1, float64(step+s.Every)/float64(s.WarmUp))
		return value * part, fmt.Sprintf("warm-up: step %d of %d", step, s.WarmUp)
	}
	return value, reason
}
