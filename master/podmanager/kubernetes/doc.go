// Package kubernetes executes the actions of package podmanager in a cluster: it watches the pods of a job, creates and deletes pods, and
// writes events on the owner of the job.
//
// # Guarantees
//
//   - A create with a name that exists succeeds if the pod is of this job instance. A delete carries the UID, so it never deletes a later pod of
//     the same name.
//   - The owner of the pods is the controller of the master's pod. Its deletion deletes the pods. The deletion of the master's pod does not.
//   - The list of pods is consistent. It is read again after a watch that has expired.
//
// # Failure
//
// All errors of the API are temporary for [Cluster.Watch], which retries until its context ends, with pauses of up to 2 s. [Cluster.Problem] has
// the last error until the next success.
package kubernetes
