// Package strategy implements a strategy: schedules of hyper-parameters and rules that stop a job, read from a YAML file. It is pure.
//
//	hyper-parameters:
//	  learning-rate: {schedule: cosine, value: 0.1, steps: 10000, end: 0.001, warm-up: 500}
//	  dropout: {schedule: constant, value: 0.2}
//	stop:
//	  - when: accuracy >= 0.99
//	  - when: job.passes >= 20
//
// docs/formats/strategy.md has all keys and the formulas.
//
// # Use
//
// [Parse] reads a file. The caller passes the [History] and the observed [Stats] to [Strategy.Decide], and stores the next history and the
// effects of the decisions in one transaction. A history is a value: if the commit fails, the caller keeps the previous one.
//
// # Guarantees
//
//   - A decision is a function of (now, history, stats), and has a reason.
//   - The values of a schedule change at multiples of its interval only, so most commits store no history.
//   - Errors of a file have the line. Unknown and repeated keys are errors, and a file is at most [MaxBytes].
package strategy
