// Package restore implements backups of a job in a file, and the restore of a job from such a file or from a set of checkpoints.
//
// A restore is atomic and overwrites nothing: etcd has the state of the job only after all its other keys, and an interrupted restore is
// repeated with the same file. The restored job is a new job instance with a new id. [Backup] saves a job, [Plan] restores one from a
// snapshot, [Resumption] from the newest set of checkpoints, and [UseSet] returns a job to a set. If the input is refused, the error is
// a [usage.Error] that names the flag.
package restore
