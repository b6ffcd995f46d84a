package etcdstore

import (
	"fmt"

	"trainmaster/etcdstore/fence"
	"trainmaster/taskqueue"
)

// The keys of a job, below its prefix. docs/keys.md describes them.
const (
	LockPrefix  = "/master/lock/"
	FlappingKey = "/master/flapping"

	keyState     = fence.StateKey
	keyParts     = "/task_queues/tasks/"
	keyAddr      = "/master/addr"
	keyJob       = "/job"
	keyTrainers  = taskqueue.RosterPrefix
	keyPS        = "/ps/"
	keyPSBlocks  = "/ps_blocks"
	keyPSDesired = "/ps_desired"
	keyLatest    = "/checkpoints/latest"
	keyHolddown  = "/master/holddown"
	keyRestoring = taskqueue.RestoringKey
)

// PartKey is the key of part i of a report's task table, below the job's
// prefix.
func PartKey(reportID string, i int) string {
	return fmt.Sprintf("%s%s/%04d", keyParts, reportID, i)
}

// PartKey implements [store.Store].
func (*Store) PartKey(reportID string, i int) string { return PartKey(reportID, i) }
