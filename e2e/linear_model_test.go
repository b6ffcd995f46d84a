package e2e

import (
	"fmt"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"

	"trainmaster/taskqueue"
)

// taskState is the model of a task in a pass. Histories of real masters are checked against it. For any sequence of masters,
// one order of all calls must fit their times and these rules:
//
//	dispatch a     the task is not counted, and a is the next attempt: no attempt is dispatched twice
//	finish a       of a dispatched attempt: counted if no attempt was counted; otherwise already counted, or stale
//	read           the final state in etcd: the attempt that was counted, or none
//
// A dispatch needs no finish before it, because a task may be taken back from its trainer at any time.
type taskState struct {
	given   taskqueue.Attempt // last dispatched attempt
	counted taskqueue.Attempt // 0: none
}

// act is the part of a call that concerns one task.
type act struct {
	at      taskPosition
	kind    actKind
	attempt taskqueue.Attempt // dispatched or finished attempt
}

type actKind int

const (
	dispatching actKind = iota
	finishing
	reading
)

// result is the result of a call as its caller knows it.
type result struct {
	verdict  taskqueue.FinishStatus // result of a finish
	repeated bool                   // the request was sent more than once; an earlier copy may have been applied
	unknown  bool                   // no answer arrived
	counted  taskqueue.Attempt      // result of a read
}

// next returns the possible states of a task after a call, or none if the result is impossible.
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
		return []taskState{done} // the first copy was counted, and the repeated request was answered "already counted"
	}
	return nil
}

// taskModel checks each task of each pass separately: a history is linearizable if the history of every task is.
var taskModel = (&porcupine.NondeterministicModel{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		byTask := map[taskPosition][]porcupine.Operation{}
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

// linearizable checks a history. If it is not linearizable, why describes the shortest history of a task that is not.
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
