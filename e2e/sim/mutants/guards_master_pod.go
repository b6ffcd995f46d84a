package mutants

// masterPodGuards are the bugs of the rows below "The pod of the master" of docs/faults-kubernetes.md.
var masterPodGuards = []guard{
	{"F260", "e2e.TestEvictedMasterDoesNotCompleteTheJob", mutant{"stopped master in a pod exits with 0", "stopped-master-in-a-pod",
		value("nil"),
		"the Job is complete when its master is evicted"}},
	{"F260", "e2e.TestEvictedMasterDoesNotCompleteTheJob", mutant{"stopped trainer in a pod exits with 0", "stopped-process-in-a-pod",
		condition("$ && false"),
		"the worker counts as completed when it is evicted"}},
	{"F260", "e2e.TestFailedAndIncompleteJobsInAPod", mutant{"exit codes of pods ignored", "exit-codes-of-pods",
		condition("$ && false"),
		"a job that has failed is repeated without end"}},
	{"F261", "etcdstore.TestEmbeddedListensForOtherMachines", mutant{"address of a former machine used again", "embedded-port-of-loopback",
		condition("id.ClientAddr != \"\""),
		"the etcd does not start after its directory has moved to another pod"}},
	{"F261", "e2e.TestEmbeddedEtcdServesOtherMachines", mutant{"no warning of an etcd that is open", "warning-of-open-etcd",
		remove(),
		"the state of the job is open to a network without a notice"}},
}
