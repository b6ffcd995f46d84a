// Package pods implements the component of a master that keeps the pods of a job alive. It observes the pods and the committed state of the
// job, and asks [podmanager.Plan]. It stores the decision with the task queue, and executes it.
//
// # Guarantees
//
//   - A decision is stored in the fenced transaction of the leader before a request to the cluster.
//   - The session of a trainer whose pod has ended ends immediately, without the grace of a lost connection. Its task is charged only if the
//     trainer caused the end.
//   - Requests do not delay decisions: a cluster that does not answer delays only its own pods.
//
// # Failure
//
// An error of the cluster never ends the term. A refused create is repeated with a pause, and its reason is in the summary.
package pods
