// Package decide has the decisions of a master that are functions of what is known: the clock
// of the job, how long to wait for more callers, what an unknown outcome was, and whether the
// leader is to be deposed. It is pure: sockets, timers and etcd stand around it, so that the
// simulator runs the same code.
package decide
