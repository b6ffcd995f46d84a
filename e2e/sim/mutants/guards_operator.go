package mutants

// operatorGuards are the bugs of the rows below "TrainingJobs" of docs/faults-kubernetes.md.
var operatorGuards = []guard{
	{"F315", "operator.TestUnknownFieldOfATemplateIsNamed", mutant{"unknown field in the template of a TrainingJob ignored", "template-of-a-training-job-is-strict",
		condition("$ && false"),
		"a misspelled toleration has no effect"}},
	{"F316", "operator.TestFailedJobHasItsReason", mutant{"reason of the master not mirrored", "reason-of-a-failed-job",
		condition("$ && false"),
		"a failed TrainingJob shows the rule of its Job, not the cause"}},
	{"F317", "operator.TestSuspendedJobEndsItsMasterFirst", mutant{"servers deleted before their last checkpoint", "pods-end-after-the-master",
		condition("$2"),
		"a suspended job loses the updates since its last checkpoint"}},
	{"F317", "operator.TestSuspendedJobEndsItsMasterFirst", mutant{"job with pods called suspended", "suspended-without-pods",
		condition("($) && false"),
		"the machines of a suspended job are in use"}},
	{"F318", "operator.TestTimeToLiveBeginsWithTheEnd", mutant{"time to live begins with the creation", "ttl-begins-with-the-end",
		text("t.Status.CompletionTime", "t.CreationTimestamp"),
		"a long job is deleted at its end"}},
	{"F319", "operator.TestObjectOfAnotherOwnerIsRefused", mutant{"object of another owner used", "object-of-another-owner",
		condition("$ && false"),
		"a job uses the Service of another program"}},
	{"F320", "master/podmanager/kubernetes.TestAnnotationIsOfItsOwnJob", mutant{"annotation without the UID", "annotation-of-its-own-job",
		text("\"uid\": job.UID, ", ""),
		"a master that ends late writes to the next Job of its name"}},
	{"F320", "master/progress.TestFinalProgressIsRepeatedUntilTheClusterTakesIt", mutant{"last progress published once", "final-progress-repeated",
		condition("true"),
		"a TrainingJob whose job has ended shows an earlier accuracy"}},
}
