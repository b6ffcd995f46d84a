// Package drill makes faults happen to a running job, on purpose, and says what came of it: who took over, after how long,
// what was given out again, and, by the job's ledger, that nothing was lost or counted twice.
//
// A [Drill] needs the job's etcd, and a process of this machine to hurt. A [Scene] says which those are: `master run` keeps
// it in a file of its directory, [SceneFile]. Without one the leader is who listens at the address that it announced. A process
// is only ever signalled when its start time is the one in the scene, or when it runs this very program: process numbers
// are used again.
//
// Partitions and slow stores are made by [Proxies], which a drillable run puts before etcd, one for each master. They are
// controlled over HTTP on 127.0.0.1 with a secret that stands in the scene.
//
// Whatever a drill does, it undoes: stopped processes go on and proxies pass again, also when it is interrupted.
package drill
