// Package progress publishes the progress of a job outside of its master: a few numbers, in the annotations of the object that owns the pod of the
// master. A controller reads them without access to the network of the job.
//
// # Guarantees
//
//   - Only committed states are published.
//   - [Publisher.Final] publishes the state of an ended job before the process of the master ends.
//
// # Failure
//
// An error of the cluster never ends the term. The next publication has all numbers again.
package progress
