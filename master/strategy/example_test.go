package strategy_test

import (
	"fmt"

	"trainmaster/master/strategy"
)

// The learning rate falls by half every 1,000 steps, and the job ends after 2,500 steps.
func ExampleStrategy() {
	s, err := strategy.Parse([]byte(`
hyper-parameters:
  learning-rate: {schedule: step, value: 0.1, steps: 1000, factor: 0.5}
stop:
  - when: job.step >= 2500
`))
	if err != nil {
		fmt.Println(err)
		return
	}
	var history strategy.History
	for step := uint64(0); step <= 2500; step += 500 {
		next, decisions := s.Decide(1, history, strategy.Stats{Step: step})
		history = next // stored with the commit
		for _, d := range decisions {
			fmt.Printf("%d %s %v (%s)\n", step, d.Parameter, d.Value, d.Reason)
		}
	}
	// Output:
	// 0 learning-rate 0.1 (step: 0 reductions)
	// 1000 learning-rate 0.05 (step: 1 reductions)
	// 2000 learning-rate 0.025 (step: 2 reductions)
	// 2500  0 (job.step >= 2500: job.step is 2500)
}
