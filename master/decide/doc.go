// Package decide implements the decisions of a master that are pure functions of its observations: the job clock, the
// wait for more callers, the result of an unknown outcome, and the takeover of the lock. It uses no socket, timer or
// etcd, so that the simulator runs the same code.
package decide
