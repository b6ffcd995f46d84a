package e2e

import (
	"fmt"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"

	"trainmaster/taskqueue"
)

// The model that histories of real masters are checked against: one task of one pass, as its trainers must see it. Whatever
// masters come and go in between, there is one order of all calls that fits their times and these rules:
//
//	dispatch a     the task is not counted, and a is the next attempt: no attempt is given out twice
//	finish a       of an attempt that was given out: counted if nothing was counted yet; else already counted, or stale
//	read           what etcd holds in the end: counted by the attempt whose finish was counted, or not at all
//
// A task may be taken back from its trainer at any time (it was lost, or its answer was), so that a dispatch needs no finish before it.
type taskState struct {
	given   taskqueue.Attempt // the last one
	counted taskqueue.Attempt // 0: not
}

// act is one call, as far as it concerns one task.
type act struct {
	at      place
	kind    actKind
	attempt taskqueue.Attempt // of the dispatch or finish
}

type actKind int

const (
	dispatching actKind = iota
	finishing
	reading
)

// result is what a caller knows of its call.
type result struct {
	verdict  taskqueue.FinishStatus // of a finish
	repeated bool                   // the request was sent more than once: an earlier one may have done it
	unknown  bool                   // no answer came
	counted  taskqueue.Attempt      // of a read
}

// next lists the states in which a task can be after a call; none if the call cannot have had that result.
func (s taskState) next(a act, r result) []taskState {
	done := taskState{s.given, a.attempt}
	countable := s.counted == 0 && a.attempt <= s.given && a.attempt > 0
	switch {
	case a.kind == dispatching && s.counted == 0 && a.attempt == s.given+1:
		return []taskState{{a.attempt, 0}}
	case a.kind == reading && r.counted == s.counted:
		return []taskState{s}
	case a.kind != finishing:
		return nil
	case r.unknown && countable:
		return []taskState{s, done}
	case r.unknown:
		return []taskState{s}
	case r.verdict == taskqueue.Counted && countable:
		return []taskState{done}
	case r.verdict == taskqueue.Counted:
		return nil
	case s.counted != 0:
		return []taskState{s}
	case r.repeated && countable:
		return []taskState{done} // the first one was counted, and the repeat was told so
	}
	return nil
}

// taskModel checks each task of each pass by itself: a history is linearizable if that of every task is.
var taskModel = (&porcupine.NondeterministicModel{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		byTask := map[place][]porcupine.Operation{}
		for _, op := range history {
			at := op.Input.(act).at
			byTask[at] = append(byTask[at], op)
		}
		var parts [][]porcupine.Operation
		for _, part := range byTask {
			parts = append(parts, part)
		}
		return parts
	},
	Init: func() []any { return []any{taskState{}} },
	Step: func(state, input, output any) (states []any) {
		for _, next := range state.(taskState).next(input.(act), output.(result)) {
			states = append(states, next)
		}
		return states
	},
	DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v -> %+v", input, output) },
}).ToModel()

// linearizable checks a history, and describes the shortest one of a task that is not.
func linearizable(history []porcupine.Operation, limit time.Duration) (verdict porcupine.CheckResult, why string) {
	if verdict = porcupine.CheckOperationsTimeout(taskModel, history, limit); verdict != porcupine.Illegal {
		return verdict, ""
	}
	var shortest []porcupine.Operation
	for _, part := range taskModel.Partition(history) {
		if porcupine.CheckOperationsTimeout(taskModel, part, limit) == porcupine.Illegal && (shortest == nil || len(part) < len(shortest)) {
			shortest = part
		}
	}
	slices.SortFunc(shortest, func(a, b porcupine.Operation) int { return int(a.Call - b.Call) })
	for _, op := range shortest {
		why += fmt.Sprintf("%12v to %12v  client %d  %s\n", time.Duration(op.Call), time.Duration(op.Return), op.ClientId, taskModel.DescribeOperation(op.Input, op.Output))
	}
	return verdict, why
}
