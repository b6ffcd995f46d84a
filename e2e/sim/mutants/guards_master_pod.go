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
	{"F358", "e2e.TestProcessesEndWithoutAMaster", mutant{"pods run without a master", "process-without-a-master-ends",
		value("false"),
		"the pods of a failed Job hold their devices until it is deleted"}},
	{"F358", "e2e.TestProcessesEndWithoutAMaster", mutant{"failover counts as no master", "short-time-without-a-master",
		condition("$ && false"),
		"a pod ends while a master leads"}},
	{"F359", "e2e.TestWrongUsageBesideAnotherMaster", mutant{"standby with wrong usage fails the Job", "wrong-usage-of-a-standby",
		condition("$ && false"),
		"a typo in a ConfigMap ends the job of a healthy leader"}},
	{"F261", "etcdstore.TestEmbeddedListensForOtherMachines", mutant{"address of a former machine used again", "embedded-port-of-loopback",
		condition("id.ClientAddr != \"\""),
		"the etcd does not start after its directory has moved to another pod"}},
	{"F261", "e2e.TestEmbeddedEtcdServesOtherMachines", mutant{"no warning of an etcd that is open", "warning-of-open-etcd",
		remove(),
		"the state of the job is open to a network without a notice"}},
}
