// Package e2e holds the tests of the whole program: they build it, start real masters, parameter servers and trainers as
// processes on real files and a real etcd, kill, stop and interrupt them, and compare what the job counted with what the
// trainers say they trained.
//
// A test waits for conditions, never for time: what a job does is read from its etcd and from the leader's Status. Every
// process that a test starts ends with it, and with the test binary, however that ends. When a test fails, it shows the
// ends of their logs; a data race or a panic in any of them fails it.
package e2e
