// Package e2e tests the whole program. The tests build it and start masters, parameter servers and trainers as processes,
// with real files and a real etcd. They kill, pause and interrupt these processes. Then they compare the tasks that the job
// counted with the journals of the trainers.
//
// A test waits for conditions in etcd and in the leader's Status, not for a fixed time. Every process that a test starts
// ends with the test, and on Linux also if the test binary is killed. A failed test prints the ends of the logs. A data
// race or a panic in a log fails the test.
package e2e
