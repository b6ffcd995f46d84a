package taskqueue

import "flag"

// The property tests draw the same cases in every run. -rapid.seed=0 draws others, -rapid.checks sets their number.
func init() {
	for name, value := range map[string]string{"rapid.checks": "1000", "rapid.seed": "1", "rapid.nofailfile": "true"} {
		if err := flag.Set(name, value); err != nil {
			panic(err)
		}
	}
}
