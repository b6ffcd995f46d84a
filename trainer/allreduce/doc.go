// Package allreduce implements synchronous training without parameter servers. Each member of a ring has the whole model, and applies the
// same updates to it.
//
// # A step
//
//	read a mini-batch of the own task, compute the sum of its gradients         a member without a task: nothing
//	Gather     the headers of all members: version, task, records               after it, all members have the version
//	           all members accept the same contributions
//	AllReduce  the sums of the accepted contributions, in rank order            zero for the others
//	Apply      the sum and its number of records: version + 1
//	Gather     only if a member has used the last record of its task            after it, all members have version + 1
//	           that member reports the task as finished
//
// # The records of the model
//
// The state of a member is the model with its version, and a [Progress]: the records of each task that the model has. Both change together, and
// a newcomer receives both. A contribution names its task, the number of the first record, and the count. It is accepted if the model has exactly
// the records of the task before it. If a step has two contributions of one task, the later attempt is accepted.
//
// So each record is in the model once, although several members train the same task, in succession or at the same time. A task whose trainer was lost
// continues at the first record that the model does not have.
//
// # Loss of a member
//
// A state has a tag: the generation in which it was agreed last, and the version. At the start of a generation, the member with the greatest tag
// sends its state to all members with another tag. If several members have it, the lowest rank sends. Then all tags have the new generation. A step that no member of the new
// generation has completed is repeated, without the contributions of members that are gone. A step that one of them has completed is in the state that
// all receive.
//
// A member reports a task only if all members of the generation have the version with its last record. Any member that is left therefore has
// all records of the tasks that were reported. If no member of a generation is left, the steps since the next older state are lost.
package allreduce
