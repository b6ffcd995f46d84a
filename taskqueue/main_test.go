package taskqueue

import "flag"

// The property tests draw the same cases every time. -rapid.seed=0 draws others, and
// -rapid.checks more.
func init() {
	for name, value := range map[string]string{"rapid.checks": "1000", "rapid.seed": "1", "rapid.nofailfile": "true"} {
		if err := flag.Set(name, value); err != nil {
			panic(err)
		}
	}
}
