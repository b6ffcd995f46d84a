// Package detector implements the failure detection of a standby: from the queue for the lock, heartbeats and connections it decides
// whether the leader is alive, silent or dead. It uses no socket, clock or etcd, so that the simulator runs the same code.
package detector
