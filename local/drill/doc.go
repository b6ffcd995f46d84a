// Package drill injects faults into a running job and reports the effects: the new leader, the time of the failover, the tasks that
// were dispatched again and, by the ledger of the job, whether a task was lost or counted twice.
//
// A [Drill] needs the etcd of the job, and a victim on this machine. A [Scene] lists them: `master run` keeps it in the file
// [SceneFile] of its directory. Without a scene, the leader is the process that listens at the announced address. The kernel reuses
// process ids. Therefore a process gets a signal only if it has the start time of the scene, or runs the same program.
//
// [Proxies] simulate partitions and a slow etcd. A drillable run has a proxy between each master and etcd. They are controlled over
// HTTP on 127.0.0.1, with the secret of the scene.
//
// A drill undoes its fault at the end, also if it is interrupted: it continues stopped processes and resets proxies.
package drill
