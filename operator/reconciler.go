package operator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"trainmaster/master/podmanager"
	"trainmaster/master/podmanager/kubernetes"
	"trainmaster/master/progress"
	"trainmaster/operator/api/v1alpha1"
)

// reconciler makes the objects of TrainingJobs, and mirrors their states.
type reconciler struct {
	client.Client               // its reads are of the cache, which has only objects with NameLabel, and no pods
	api           client.Reader // reads of the API server
	events        events.EventRecorder
	now           func() time.Time
}

const (
	stale       = 200 * time.Millisecond // while the cache has an earlier version
	podsEvery   = time.Second            // while pods of a suspended job end
	pendingTime = 5 * time.Second        // while the pod of the master does not run
	occupied    = 10 * time.Second       // while an object has a name of the job, or is refused
)

// Reconcile brings one job one step nearer to its spec.
func (r *reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	result, err := r.reconcile(ctx, request)
	if apierrors.IsConflict(err) {
		return ctrl.Result{RequeueAfter: stale}, nil
	}
	return result, err
}

func (r *reconciler) reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	var t v1alpha1.TrainingJob
	if err := r.Get(ctx, request.NamespacedName, &t); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !t.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, nil // the garbage collection deletes what it owns
	}
	if end := finished(&t); end != nil {
		return r.expire(ctx, &t)
	}
	o := observation{now: r.now(), previous: t.Status}
	wanted, err := objects(&t)
	if err != nil {
		o.problem = &problem{reason: "InvalidSpec", message: err.Error(), final: true}
		return ctrl.Result{}, r.report(ctx, &t, o)
	}
	for _, object := range wanted {
		made, err := r.ensure(ctx, &t, object)
		if other := (*occupiedError)(nil); errors.As(err, &other) {
			o.problem = &problem{reason: "NameInUse", message: other.Error()}
			return ctrl.Result{RequeueAfter: occupied}, r.report(ctx, &t, o)
		}
		if o.problem = refusal(object, err); o.problem != nil {
			return ctrl.Result{RequeueAfter: occupied}, r.report(ctx, &t, o)
		}
		if err != nil {
			return ctrl.Result{}, fmt.Errorf("create %s %s: %w", kindOf(object), object.GetName(), err)
		}
		if job, ok := made.(*batchv1.Job); ok {
			o.job = job
		}
	}
	if err := r.follow(ctx, &t, o.job); err != nil {
		return ctrl.Result{}, err
	}
	var result ctrl.Result
	switch ready := o.job.Status.Ready; {
	case endedByCluster(o.job):
		if _, err := r.endPods(ctx, o.job); err != nil {
			return ctrl.Result{}, err
		}
		if o.words, err = r.words(ctx, o.job); err != nil {
			return ctrl.Result{}, err
		}
	case t.Spec.Suspend:
		if o.pods, err = r.endPods(ctx, o.job); err != nil {
			return ctrl.Result{}, err
		}
		if o.pods > 0 || active(o.job) {
			result.RequeueAfter = podsEvery
		}
	case ready == nil || *ready == 0:
		if o.words, err = r.words(ctx, o.job); err != nil {
			return ctrl.Result{}, err
		}
		result.RequeueAfter = pendingTime
	}
	if err := r.report(ctx, &t, o); err != nil {
		return ctrl.Result{}, err
	}
	if finished(&t) != nil {
		return r.expire(ctx, &t)
	}
	return result, nil
}

// expire deletes a job that has ended, if its time has come.
func (r *reconciler) expire(ctx context.Context, t *v1alpha1.TrainingJob) (ctrl.Result, error) {
	if t.Spec.TTLSecondsAfterFinished == nil {
		return ctrl.Result{}, nil
	}
	if rest := timeLeft(t, r.now()); rest > 0 {
		return ctrl.Result{RequeueAfter: rest}, nil
	}
	err := r.Delete(ctx, t, client.Preconditions{UID: &t.UID, ResourceVersion: &t.ResourceVersion}, client.PropagationPolicy(metav1.DeletePropagationBackground))
	return ctrl.Result{}, client.IgnoreNotFound(err)
}

// refusal returns why the API refuses an object; nil: it does not. An invalid object is refused again, since the spec cannot change. A quota, a right
// or a webhook can change.
func refusal(object client.Object, err error) *problem {
	message := fmt.Sprintf("%s %s: %v", kindOf(object), object.GetName(), err)
	switch {
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err):
		return &problem{reason: "InvalidSpec", message: message, final: true}
	//guard:refusals-are-shown
	case apierrors.IsForbidden(err), apierrors.IsInternalError(err):
		return &problem{reason: "Refused", message: message}
	}
	return nil
}

// occupiedError is the error of a name that another object has.
type occupiedError struct{ message string }

func (e *occupiedError) Error() string { return e.message }

// ensure creates an object if it is absent, and returns the existing one.
func (r *reconciler) ensure(ctx context.Context, t *v1alpha1.TrainingJob, object client.Object) (client.Object, error) {
	found := reflect.New(reflect.TypeOf(object).Elem()).Interface().(client.Object)
	err := r.Get(ctx, client.ObjectKeyFromObject(object), found)
	if apierrors.IsNotFound(err) {
		if err := controllerutil.SetControllerReference(t, object, r.Scheme()); err != nil {
			return nil, err
		}
		if err = r.Create(ctx, object); err == nil {
			return object, nil
		}
		if !apierrors.IsAlreadyExists(err) {
			return nil, err
		}
		err = r.api.Get(ctx, client.ObjectKeyFromObject(object), found) // the cache is late, or the object is not of a TrainingJob
	}
	if err != nil {
		return nil, err
	}
	return found, checkOwner(t, found)
}

// checkOwner returns an error for an object that is not of the job. It is never changed.
func checkOwner(t *v1alpha1.TrainingJob, found client.Object) error {
	//guard:object-of-another-owner
	if !metav1.IsControlledBy(found, t) {
		return &occupiedError{fmt.Sprintf("%s %s: expected none, or one of this TrainingJob, found another: delete it, or choose another name", kindOf(found), found.GetName())}
	}
	return nil
}

// kindOf returns the kind of an object for messages.
func kindOf(object client.Object) string {
	kind := fmt.Sprintf("%T", object)
	return kind[strings.LastIndexByte(kind, '.')+1:]
}

// follow applies the fields of the spec that can change to the Job of the master.
func (r *reconciler) follow(ctx context.Context, t *v1alpha1.TrainingJob, job *batchv1.Job) error {
	if jobCondition(job, batchv1.JobComplete) != nil || jobCondition(job, batchv1.JobFailed) != nil {
		return nil
	}
	before := job.DeepCopy()
	job.Spec.Suspend = new(t.Spec.Suspend)
	if job.Annotations == nil {
		job.Annotations = map[string]string{}
	}
	job.Annotations[progress.WorkersAnnotation] = strconv.Itoa(int(t.Spec.Workers))
	if reflect.DeepEqual(before, job) {
		return nil
	}
	if err := r.Patch(ctx, job, client.MergeFrom(before)); err != nil {
		return fmt.Errorf("change the Job %s: %w", job.Name, err)
	}
	return nil
}

// podsOf reads the pods of a job with one of the roles.
func (r *reconciler) podsOf(ctx context.Context, job *batchv1.Job, roles ...string) ([]corev1.Pod, error) {
	var list corev1.PodList
	if err := r.api.List(ctx, &list, client.InNamespace(job.Namespace), client.HasLabels{kubernetes.RoleLabel}); err != nil { // the owner decides, not the name of the job
		return nil, fmt.Errorf("list the pods of %s: %w", job.Name, err)
	}
	return slices.DeleteFunc(list.Items, func(p corev1.Pod) bool {
		owned := slices.ContainsFunc(p.OwnerReferences, func(o metav1.OwnerReference) bool { return o.UID == job.UID })
		return !owned || !slices.Contains(roles, p.Labels[kubernetes.RoleLabel])
	}), nil
}

// endPods deletes the workers and servers of a suspended job. It returns the number of pods that have not ended.
func (r *reconciler) endPods(ctx context.Context, job *batchv1.Job) (n int, err error) {
	pods, err := r.podsOf(ctx, job, string(podmanager.Worker), string(podmanager.Server))
	if err != nil {
		return 0, err
	}
	left, surplus := podsToEnd(job, pods)
	for _, p := range surplus {
		if err := r.Delete(ctx, &p, client.Preconditions{UID: &p.UID}); client.IgnoreNotFound(err) != nil {
			return left, fmt.Errorf("delete the pod %s: %w", p.Name, err)
		}
	}
	return left, nil
}

// words returns why the master does not run.
func (r *reconciler) words(ctx context.Context, job *batchv1.Job) (string, error) {
	pods, err := r.podsOf(ctx, job, masterRole)
	if err != nil {
		return "", err
	}
	if len(pods) > 0 {
		return wordsOf(pods), nil
	}
	var list corev1.EventList
	if err := r.api.List(ctx, &list, client.InNamespace(job.Namespace), client.MatchingFields{"involvedObject.uid": string(job.UID), "reason": failedCreate}); err != nil {
		return "", nil //nolint:nilerr // the reason is for users only
	}
	return withoutPod(list.Items), nil
}

// failedCreate is the reason of the events of a Job whose pod is refused.
const failedCreate = "FailedCreate"

// report writes the status if it has changed, and an event for a new phase.
func (r *reconciler) report(ctx context.Context, t *v1alpha1.TrainingJob, o observation) error {
	before := t.DeepCopy()
	t.Status = statusOf(t, o)
	if reflect.DeepEqual(before.Status, t.Status) {
		return nil
	}
	// With the version, a status that follows from an earlier one of the cache is refused. All fields are sent: a number is also shown if it is 0.
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"resourceVersion": t.ResourceVersion}, "status": t.Status})
	if err != nil {
		return err
	}
	if err := r.Status().Patch(ctx, t, client.RawPatch(types.MergePatchType, patch)); err != nil {
		return client.IgnoreNotFound(err)
	}
	if kind, reason, message := eventOf(before.Status, t); reason != "" {
		r.events.Eventf(t, nil, kind, reason, "Reconcile", "%s", message)
	}
	return nil
}

// eventOf returns the event of a new status: for a new phase, and for a new reason why the job cannot be created. reason "": none.
func eventOf(before v1alpha1.TrainingJobStatus, t *v1alpha1.TrainingJob) (kind, reason, message string) {
	created := meta.FindStatusCondition(t.Status.Conditions, v1alpha1.ConditionCreated)
	was := meta.FindStatusCondition(before.Conditions, v1alpha1.ConditionCreated)
	phase := t.Status.Phase
	switch {
	case created != nil && created.Status == metav1.ConditionFalse && (was == nil || was.Status != created.Status || was.Reason != created.Reason):
		return corev1.EventTypeWarning, created.Reason, created.Message
	case phase == before.Phase:
		return "", "", ""
	}
	kind, message = corev1.EventTypeNormal, "the job is "+strings.ToLower(string(phase))
	if end := finished(t); end != nil {
		message = end.Message
	}
	if phase == v1alpha1.Failed {
		kind = corev1.EventTypeWarning
	}
	return kind, string(phase), message
}
