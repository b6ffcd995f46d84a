package optimizer_test

import (
	"fmt"
	"log"

	"trainmaster/pserver/optimizer"
)

// A rule with momentum updates two parameters in two steps. The caller keeps the state and passes it to each step.
func Example() {
	config := optimizer.Config{Kind: optimizer.Momentum, LearningRate: 0.5, Momentum: 0.5}
	if err := config.Validate(); err != nil {
		log.Fatal(err)
	}
	rule := config.Rule()
	parameters := []float32{1, 2}
	var state optimizer.State
	for i := range rule.Slots() {
		state[i] = make([]float32, len(parameters))
	}
	rule.Start(parameters, state)
	for count := uint64(1); count <= 2; count++ {
		gradient := []float32{1, 0} // Apply overwrites it
		rule.Apply(parameters, gradient, state, optimizer.Step{Count: count, Scale: 1})
		fmt.Println(parameters, rule.Slots(), state[0])
	}
	// Output:
	// [0.5 2] [momentum] [1 0]
	// [-0.25 2] [momentum] [1.5 0]
}

// The factor of the learning rate grows in the warm-up, then decreases to End.
func ExampleSchedule_At() {
	schedule := optimizer.Schedule{Kind: optimizer.Linear, Warmup: 2, Steps: 6, End: 0.5}
	for step := uint64(1); step <= 8; step++ {
		fmt.Print(schedule.At(step), " ")
	}
	// Output: 0.5 1 1 0.875 0.75 0.625 0.5 0.5
}
