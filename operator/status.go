package operator

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"trainmaster/master/podmanager"
	"trainmaster/master/podmanager/kubernetes"
	"trainmaster/master/progress"
	"trainmaster/operator/api/v1alpha1"
)

// observation is what the controller sees of a job.
type observation struct {
	job     *batchv1.Job // of the master. nil: it does not exist
	problem *problem     // why the job cannot be created. nil: it can

	pods     int    // workers and servers that have not ended
	words    string // of the pod of the master: why it does not run, or its last words
	now      time.Time
	previous v1alpha1.TrainingJobStatus
}

// problem is a reason why a job is not created.
type problem struct {
	reason, message string
	final           bool // the job fails
}

// finished returns the condition that ends a job; nil: it has not ended.
func finished(t *v1alpha1.TrainingJob) *metav1.Condition {
	for _, kind := range []string{v1alpha1.ConditionComplete, v1alpha1.ConditionFailed} {
		if c := meta.FindStatusCondition(t.Status.Conditions, kind); c != nil && c.Status == metav1.ConditionTrue {
			return c
		}
	}
	return nil
}

// statusOf returns the status of a job.
func statusOf(t *v1alpha1.TrainingJob, o observation) v1alpha1.TrainingJobStatus {
	s := *o.previous.DeepCopy()
	s.ObservedGeneration = t.Generation
	s.Selector = fmt.Sprintf("%s=%s,%s=%s", kubernetes.JobLabel, t.Name, kubernetes.RoleLabel, podmanager.Worker)
	if groupSize(t) > 1 { // one pod for each worker: an autoscaler divides by their number
		s.Selector += fmt.Sprintf(",%s=0", kubernetes.RankLabel)
	}
	set := func(kind string, is bool, reason, message string) {
		status := metav1.ConditionFalse
		if is {
			status = metav1.ConditionTrue
		}
		meta.SetStatusCondition(&s.Conditions, metav1.Condition{
			Type: kind, Status: status, Reason: reason, Message: message, ObservedGeneration: t.Generation, LastTransitionTime: metav1.NewTime(o.now),
		})
	}
	end := func(phase v1alpha1.Phase, kind, reason, message string) {
		s.Phase, s.Workers, s.ParameterServers = phase, 0, 0
		set(kind, true, reason, message)
		set(v1alpha1.ConditionRunning, false, reason, message)
		set(v1alpha1.ConditionSuspended, false, reason, message)
		if s.CompletionTime == nil {
			s.CompletionTime = new(metav1.NewTime(o.now))
		}
	}
	if o.problem != nil {
		set(v1alpha1.ConditionCreated, false, o.problem.reason, o.problem.message)
		if s.Phase = v1alpha1.Pending; o.problem.final {
			end(v1alpha1.Failed, v1alpha1.ConditionFailed, o.problem.reason, o.problem.message)
		}
		return s
	}
	set(v1alpha1.ConditionCreated, true, "JobCreated", "the Job of the master exists")
	reported := mirror(&s, o.job)
	ready := o.job.Status.Ready != nil && *o.job.Status.Ready > 0
	ends := active(o.job) && (reported.Status == "ended" || reported.Status == "failed") // the master serves no port while its pods end
	if ready && s.StartTime == nil {
		s.StartTime = new(metav1.NewTime(o.now))
	}
	if c := jobCondition(o.job, batchv1.JobComplete); c != nil {
		end(v1alpha1.Complete, v1alpha1.ConditionComplete, "TrainingComplete", cmp.Or(reported.Reason, "all passes are done"))
		s.CompletionTime = new(c.LastTransitionTime)
		return s
	}
	if c := jobCondition(o.job, batchv1.JobFailed); c != nil {
		message := cmp.Or(o.words, c.Message)
		//guard:reason-of-a-failed-job
		if reported.Status == "failed" && reported.Reason != "" {
			message = reported.Reason
		}
		end(v1alpha1.Failed, v1alpha1.ConditionFailed, cmp.Or(c.Reason, "JobFailed"), message)
		s.CompletionTime = new(c.LastTransitionTime)
		return s
	}
	switch {
	//guard:suspended-without-pods
	case t.Spec.Suspend && (o.pods > 0 || active(o.job)):
		s.Phase = v1alpha1.Suspending
		set(v1alpha1.ConditionSuspended, false, "PodsEnd", "pods of the job end")
		set(v1alpha1.ConditionRunning, false, "Suspending", "suspend is true")
	case t.Spec.Suspend:
		s.Phase, s.Workers, s.ParameterServers = v1alpha1.Suspended, 0, 0
		set(v1alpha1.ConditionSuspended, true, "Suspended", "suspend is true, and no pod is left")
		set(v1alpha1.ConditionRunning, false, "Suspended", "suspend is true")
	case ready || ends:
		s.Phase = v1alpha1.Running
		set(v1alpha1.ConditionSuspended, false, "Running", "suspend is false")
		message := "the master is ready"
		//guard:waiting-pods-in-the-condition
		if reported.Waiting != "" {
			message += "; " + reported.Waiting
		}
		set(v1alpha1.ConditionRunning, true, "MasterReady", message)
	default:
		s.Phase = v1alpha1.Pending
		set(v1alpha1.ConditionSuspended, false, "Pending", "suspend is false")
		set(v1alpha1.ConditionRunning, false, "MasterNotReady", cmp.Or(o.words, "the pod of the master is not ready"))
	}
	return s
}

// podsToEnd returns the number of workers and servers of a suspended job that have not ended, and those to delete now. They are deleted when the
// master has ended: before, it takes a last checkpoint, and would create them again.
func podsToEnd(job *batchv1.Job, pods []corev1.Pod) (left int, surplus []corev1.Pod) {
	for _, p := range pods {
		if p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			continue // its log stays
		}
		left++
		//guard:pods-end-after-the-master
		if !active(job) && p.DeletionTimestamp.IsZero() {
			surplus = append(surplus, p)
		}
	}
	return left, surplus
}

// timeLeft returns the time until a job that has ended is deleted.
func timeLeft(t *v1alpha1.TrainingJob, now time.Time) time.Duration {
	ttl := time.Duration(*t.Spec.TTLSecondsAfterFinished) * time.Second
	//guard:ttl-begins-with-the-end
	return t.Status.CompletionTime.Add(ttl).Sub(now)
}

// active reports whether a pod of the Job has not ended.
func active(job *batchv1.Job) bool {
	return job.Status.Active > 0 || job.Status.Terminating != nil && *job.Status.Terminating > 0
}

// endedByCluster reports whether the Job has failed and its master has not ended the job, for example by a deadline that the cluster has set. The
// master has deleted no pods then.
func endedByCluster(job *batchv1.Job) bool {
	if jobCondition(job, batchv1.JobFailed) == nil {
		return false
	}
	p, err := progress.Decode(job.Annotations[progress.Annotation])
	//guard:pods-of-a-failed-job-end
	return err != nil || p.Status != "failed"
}

// mirror copies what the master reported last. If the report cannot be read, the status keeps the earlier one.
func mirror(s *v1alpha1.TrainingJobStatus, job *batchv1.Job) progress.Progress {
	text := job.Annotations[progress.Annotation]
	if text == "" {
		return progress.Progress{}
	}
	p, err := progress.Decode(text)
	if err != nil {
		return progress.Progress{}
	}
	s.Progress = &v1alpha1.Progress{Summary: summary(p), TasksDone: p.Done, TasksTotal: p.Tasks, Pass: int32(p.Pass), Passes: int32(p.Passes), State: p.Status}
	s.Workers, s.ParameterServers = int32(p.Workers), int32(p.Servers)
	if p.Figure == "accuracy" && p.Value != nil {
		s.Accuracy = strconv.FormatFloat(*p.Value, 'f', 4, 64)
	}
	return p
}

// summary is the progress in one word.
func summary(p progress.Progress) string {
	switch {
	case p.Status == "ended":
		return "100%"
	case p.Tasks > 0:
		return fmt.Sprintf("%d%%", 100*p.Done/p.Tasks)
	case p.Pass > 0:
		return fmt.Sprintf("pass %d", p.Pass)
	}
	return "0%"
}

// jobCondition returns a condition that is true; nil: it is not.
func jobCondition(job *batchv1.Job, kind batchv1.JobConditionType) *batchv1.JobCondition {
	for i, c := range job.Status.Conditions {
		if c.Type == kind && c.Status == corev1.ConditionTrue {
			return &job.Status.Conditions[i]
		}
	}
	return nil
}

// withoutPod returns why a Job has created no pod, by its events; "": no event says it.
func withoutPod(events []corev1.Event) string {
	if len(events) == 0 {
		return ""
	}
	newest := slices.MaxFunc(events, func(a, b corev1.Event) int { return a.LastTimestamp.Compare(b.LastTimestamp.Time) })
	//guard:refused-pod-of-the-master-is-shown
	return "the Job has created no pod: " + podmanager.OneLine(strings.TrimPrefix(newest.Message, "Error creating: "))
}

// wordsOf returns why the pod of the master does not run, or its last words; "": it runs.
func wordsOf(pods []corev1.Pod) string {
	var newest *corev1.Pod
	for i := range pods {
		if newest == nil || newest.CreationTimestamp.Before(&pods[i].CreationTimestamp) {
			newest = &pods[i]
		}
	}
	if newest == nil {
		return ""
	}
	p := kubernetes.Status(newest)
	outcome, reason := p.Outcome()
	switch {
	case outcome == podmanager.OutOfMemory:
		reason += ": raise the memory in spec.master.resources"
	case p.Exit == nil:
		reason = podmanager.OneLine(p.Words)
	}
	if reason == "" {
		return ""
	}
	return "pod " + newest.Name + ": " + reason
}
