package evaluation_test

import (
	"fmt"

	"trainmaster/master/evaluation"
	"trainmaster/master/evaluation/metric"
	"trainmaster/taskqueue"
)

// A round is due every 500 steps. The job ends when the accuracy reaches 0.9.
func ExampleDecide() {
	target := 0.9
	config := evaluation.Config{Every: evaluation.Every{Steps: 500}, Best: evaluation.Goal{Figure: "accuracy", Max: true}, Target: &target}
	var state evaluation.State
	for i, in := range []evaluation.Input{
		{Version: 0},
		{Version: 510, Model: "set-1"},
		{Version: 640, Model: "set-1", Closed: &evaluation.Closed{Round: 1, Figures: []metric.Figure{{Name: "accuracy", Value: 0.93}}}},
	} {
		next, decisions, err := evaluation.Decide(taskqueue.Clock(1000*i), config, state, in)
		if err != nil {
			fmt.Println(err)
			return
		}
		state = next // stored with the commit; the decisions apply after it
		for _, d := range decisions {
			fmt.Printf("%s %d (%s)\n", d.Action, d.Round.Number, d.Reason)
		}
	}
	// Output:
	// begin 1 (every 500 steps (version 510, 0 passes))
	// close 1 (accuracy is 0.93)
	// keep 1 (number 1 of the best 1 by accuracy:max)
	// end 1 (accuracy is 0.93, and the target is 0.9)
}
