package mutants

import "slices"

// guard is a planted bug that removes the guard against a fault of docs/faults*.md.
type guard struct {
	Fault string // key of the row
	Test  string // the test of the row that must fail, as the row names it
	mutant
}

// guards has a list for each heading of docs/faults*.md.
var guards = slices.Concat(lockGuards, taskGuards, fileGuards, evaluationGuards, serverGuards, clientGuards, masterPodGuards, podGuards, operatorGuards, ringGuards, pythonGuards)
