package etcdstore

import (
	"fmt"

	"trainmaster/etcdstore/fence"
	"trainmaster/taskqueue"
)

// The keys of a job, below its prefix. docs/keys.md describes them.
const (
	keyState     = fence.StateKey
	keyParts     = "/task_queues/tasks/"
	keyLock      = "/master/lock/"
	keyAddr      = "/master/addr"
	keyJob       = "/job"
	keyTrainers  = taskqueue.RosterPrefix
	keyPS        = "/ps/"
	keyPSDesired = "/ps_desired"
	keyHolddown  = "/master/holddown"
	keyFlapping  = "/master/flapping"
	keyRestoring = taskqueue.RestoringKey
)

// PartKey is the key of part i of a report's task table, below the job's
// prefix.
func PartKey(reportID string, i int) string {
	return fmt.Sprintf("%s%s/%04d", keyParts, reportID, i)
}
