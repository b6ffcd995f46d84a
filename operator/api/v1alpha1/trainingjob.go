package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// TrainingJob is a distributed training job: a master, its workers and its parameter servers.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:subresource:scale:specpath=.spec.workers,statuspath=.status.workers,selectorpath=.status.selector
// +kubebuilder:resource:shortName=tj,categories=all
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Progress",type=string,JSONPath=`.status.progress.summary`
// +kubebuilder:printcolumn:name="Workers",type=integer,JSONPath=`.status.workers`
// +kubebuilder:printcolumn:name="PS",type=integer,JSONPath=`.status.parameterServers`
// +kubebuilder:printcolumn:name="Accuracy",type=string,JSONPath=`.status.accuracy`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name.matches('^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$')",message="metadata.name: expected 1 to 40 lower-case letters, digits and '-', which begin with a letter: the names of pods and a Service begin with it"
type TrainingJob struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec TrainingJobSpec `json:"spec"`
	// +optional
	Status TrainingJobStatus `json:"status,omitempty"`
}

// TrainingJobList is a list of jobs.
//
// +kubebuilder:object:root=true
type TrainingJobList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []TrainingJob `json:"items"`
}

// TrainingJobSpec describes a job. Only suspend, ttlSecondsAfterFinished and, with maxWorkers, workers can be changed later.
//
// +kubebuilder:validation:XValidation:rule="!has(self.minWorkers) || self.minWorkers <= self.workers",message="minWorkers: expected at most workers",fieldPath=".minWorkers"
// +kubebuilder:validation:XValidation:rule="!has(self.maxWorkers) || self.workers <= self.maxWorkers",message="workers: expected at most maxWorkers",fieldPath=".workers"
// +kubebuilder:validation:XValidation:rule="has(self.maxWorkers) || self.workers == oldSelf.workers",message="workers: expected no change, because the job has no maxWorkers",fieldPath=".workers"
// +kubebuilder:validation:XValidation:rule="has(self.data) || has(self.worker) && has(self.worker.command)",message="data: expected it, or worker.command: the default command of the workers trains on data",fieldPath=".data"
// +kubebuilder:validation:XValidation:rule="self.groupSize == 1 || has(self.worker) && has(self.worker.command)",message="groupSize: expected worker.command with a program that trains in groups: the default command trains in one pod",fieldPath=".groupSize"
// +kubebuilder:validation:XValidation:rule="(has(self.maxWorkers) ? self.maxWorkers : self.workers) * self.groupSize + self.parameterServers <= 2000",message="groupSize: expected at most 2000 pods: maxWorkers (workers) times groupSize, and parameterServers",fieldPath=".groupSize"
// +kubebuilder:validation:XValidation:rule="has(self.data) == has(oldSelf.data) && has(self.evaluation) == has(oldSelf.evaluation) && has(self.worker) == has(oldSelf.worker) && has(self.server) == has(oldSelf.server) && has(self.master) == has(oldSelf.master) && has(self.minWorkers) == has(oldSelf.minWorkers) && has(self.maxWorkers) == has(oldSelf.maxWorkers) && has(self.env) == has(oldSelf.env) && has(self.model) == has(oldSelf.model) && has(self.checkpointEvery) == has(oldSelf.checkpointEvery)",message="only suspend, ttlSecondsAfterFinished and workers can be changed: delete the job and create another"
type TrainingJobSpec struct {
	// Image of trainmaster, for the master and, without an image of their own, for the workers and the parameter servers.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="immutable"
	Image string `json:"image"`

	// Pull policy of all images.
	// +kubebuilder:validation:Enum=Always;IfNotPresent;Never
	// +kubebuilder:default=IfNotPresent
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="immutable"
	ImagePullPolicy corev1.PullPolicy `json:"imagePullPolicy,omitempty"`

	// Suspend ends all pods, after a checkpoint. The state stays on the volume. With false, the job continues.
	// +optional
	Suspend bool `json:"suspend,omitempty"`

	// Time until a job that has completed or failed is deleted, with its pods. Without it, the job stays. The volume always stays.
	// +kubebuilder:validation:Minimum=0
	// +optional
	TTLSecondsAfterFinished *int32 `json:"ttlSecondsAfterFinished,omitempty"`

	// Storage of the state, the checkpoints and the model.
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="immutable"
	Storage Storage `json:"storage"`

	// Data to train on.
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="immutable"
	// +optional
	Data *Data `json:"data,omitempty"`

	// Evaluation on held-out data while the job trains. A sample has it by default.
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="immutable"
	// +optional
	Evaluation *Evaluation `json:"evaluation,omitempty"`

	// Walks over the data.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:default=1
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="immutable"
	Passes int32 `json:"passes,omitempty"`

	// Model of the default command of the workers (default: softmax).
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="immutable"
	// +optional
	Model string `json:"model,omitempty"`

	// Number of workers. With maxWorkers, it can be changed while the job runs, also by kubectl scale and autoscalers.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	Workers int32 `json:"workers"`

	// Largest number of workers (default: workers, which is fixed then).
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="immutable"
	// +optional
	MaxWorkers *int32 `json:"maxWorkers,omitempty"`

	// With fewer workers left, the job fails (default: 1 with maxWorkers, otherwise workers).
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="immutable"
	// +optional
	MinWorkers *int32 `json:"minWorkers,omitempty"`

	// Number of pods of each worker. The pods of a group are created, replaced and given up together, and the pod of rank 0 is the trainer. With
	// more than 1, worker.command is required.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	// +kubebuilder:default=1
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="immutable"
	GroupSize int32 `json:"groupSize,omitempty"`

	// Number of parameter servers.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	// +kubebuilder:default=1
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="immutable"
	ParameterServers *int32 `json:"parameterServers,omitempty"`

	// Time between two checkpoints of all parameter servers, as for the flag checkpoint-every of the master: 60s, 500steps, 1pass, some of
	// them separated by commas, or never (default: 1m).
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^(never|([1-9][0-9]*(steps?|pass|passes)|([0-9]+(\.[0-9]+)?(ns|us|ms|s|m|h))+)(,([1-9][0-9]*(steps?|pass|passes)|([0-9]+(\.[0-9]+)?(ns|us|ms|s|m|h))+))*)$`
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="immutable"
	// +optional
	CheckpointEvery string `json:"checkpointEvery,omitempty"`

	// Environment of all containers, for example the keys of an object store.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:XValidation:rule="self.all(e, !(e.name in ['POD_IP', 'POD_NAME', 'POD_NAMESPACE', 'TRAINMASTER_JOB', 'TRAINMASTER_ID', 'TRAINMASTER_ENDPOINTS', 'TRAINMASTER_EXIT_CODES', 'TRAINMASTER_LISTEN', 'TRAINMASTER_HTTP']))",message="expected none of POD_IP, POD_NAME, POD_NAMESPACE, TRAINMASTER_JOB, _ID, _ENDPOINTS, _EXIT_CODES, _LISTEN and _HTTP: each pod has its own"
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="immutable"
	// +listType=map
	// +listMapKey=name
	// +optional
	Env []corev1.EnvVar `json:"env,omitempty"`

	// Settings of the master.
	// +optional
	Master *Master `json:"master,omitempty"`

	// Settings of the workers.
	// +optional
	Worker *Pods `json:"worker,omitempty"`

	// Settings of the parameter servers.
	// +optional
	Server *Pods `json:"server,omitempty"`
}

// Storage is the volume of a job.
type Storage struct {
	// Name of a PersistentVolumeClaim, which all pods mount at /job. The job uses the directory with its name there. Jobs may share a claim.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	ClaimName string `json:"claimName"`
}

// Data is what the default command of the workers trains on.
//
// +kubebuilder:validation:XValidation:rule="has(self.files) != has(self.sample)",message="expected files or sample, and not both"
type Data struct {
	// Name of a PersistentVolumeClaim with the files, which all pods mount read-only at /data.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +optional
	ClaimName string `json:"claimName,omitempty"`

	// Paths, globs, or URLs of an object store (s3://bucket/key) of the files.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=1024
	// +optional
	Files []string `json:"files,omitempty"`

	// A dataset inside the program, which the job writes to its volume before it starts.
	// +kubebuilder:validation:Enum=digits;flights
	// +optional
	Sample string `json:"sample,omitempty"`
}

// Evaluation describes the evaluation rounds of a job.
type Evaluation struct {
	// Paths, globs or URLs of held-out files.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=1024
	Files []string `json:"files"`

	// Time between two rounds, as for the flag evaluate-every of the master (default: 1pass).
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	// +optional
	Every string `json:"every,omitempty"`
}

// Master has the settings of the master.
//
// +kubebuilder:validation:XValidation:rule="has(self.args) == has(oldSelf.args) && has(self.resources) == has(oldSelf.resources) && has(self.template) == has(oldSelf.template)",message="expected no field that is added or removed: delete the job and create another"
type Master struct {
	// Further flags, such as --update-mode=sync. $(NAME) is a variable of the master.
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="self.all(a, !a.matches('^--(job|listen|http|data-dir|etcd-listen|etcd-advertise|exit-codes|annotate-job)(=|$)'))",message="expected none of job, listen, http, data-dir, etcd-listen, etcd-advertise, exit-codes and annotate-job: the controller sets them"
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="immutable"
	// +optional
	Args []string `json:"args,omitempty"`

	// Requests and limits (default: requests of 100m and 256Mi, a memory limit of 1Gi).
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="immutable"
	// +optional
	Resources *corev1.ResourceRequirements `json:"resources,omitempty"`

	// A PodTemplateSpec with fields for the pod of the master: tolerations, labels, other containers. The container of the master is named main.
	// +kubebuilder:validation:Type=object
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="immutable"
	// +optional
	Template *runtime.RawExtension `json:"template,omitempty"`
}

// Pods has the settings of the pods of a role.
//
// +kubebuilder:validation:XValidation:rule="has(self.image) == has(oldSelf.image) && has(self.command) == has(oldSelf.command) && has(self.resources) == has(oldSelf.resources) && has(self.template) == has(oldSelf.template)",message="expected no field that is added or removed: delete the job and create another"
type Pods struct {
	// Image (default: the image of the job).
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="immutable"
	// +optional
	Image string `json:"image,omitempty"`

	// Command, and its arguments (default: master trainer, or master pserver). A first word "master" is the program of the image of the master.
	// $(NAME) is a variable of the pod.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MaxLength=4096
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="immutable"
	// +optional
	Command []string `json:"command,omitempty"`

	// Requests and limits.
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="immutable"
	// +optional
	Resources *corev1.ResourceRequirements `json:"resources,omitempty"`

	// A PodTemplateSpec with fields for the pods: volumes, tolerations, labels, other containers. The container with the command is named main.
	// +kubebuilder:validation:Type=object
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="immutable"
	// +optional
	Template *runtime.RawExtension `json:"template,omitempty"`
}

// Phase is the state of a job in one word.
type Phase string

// The phases.
const (
	Pending    Phase = "Pending" // the pod of the master does not run
	Running    Phase = "Running"
	Suspending Phase = "Suspending" // pods end
	Suspended  Phase = "Suspended"
	Complete   Phase = "Complete"
	Failed     Phase = "Failed"
)

// The types of conditions.
const (
	ConditionCreated   = "Created"   // the Job of the master exists
	ConditionRunning   = "Running"   // the master is ready
	ConditionSuspended = "Suspended" // suspend is true, and no pod is left
	ConditionComplete  = "Complete"
	ConditionFailed    = "Failed"
)

// TrainingJobStatus is the observed state of a job.
type TrainingJobStatus struct {
	// Phase is the state in one word. The conditions have the reasons.
	// +optional
	Phase Phase `json:"phase,omitempty"`

	// Conditions are Created, Running, Suspended, Complete and Failed.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// Progress is the progress that the master reported last.
	// +optional
	Progress *Progress `json:"progress,omitempty"`

	// Workers is the number of running workers: pods, or groups of pods.
	// +optional
	Workers int32 `json:"workers"`

	// ParameterServers is the number of running parameter servers.
	// +optional
	ParameterServers int32 `json:"parameterServers"`

	// Accuracy of the newest evaluation round.
	// +optional
	Accuracy string `json:"accuracy,omitempty"`

	// StartTime is the time at which the master was ready for the first time.
	// +optional
	StartTime *metav1.Time `json:"startTime,omitempty"`

	// CompletionTime is the time at which the job completed or failed.
	// +optional
	CompletionTime *metav1.Time `json:"completionTime,omitempty"`

	// Selector selects the workers, for the scale subresource.
	// +optional
	Selector string `json:"selector,omitempty"`

	// ObservedGeneration is the generation of the spec that this status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
}

// Progress is the progress of a job.
type Progress struct {
	// Summary is the share of the tasks of all passes that are done.
	Summary string `json:"summary"`
	// TasksDone is the number of tasks of all passes that are done.
	TasksDone int64 `json:"tasksDone"`
	// TasksTotal is the number of tasks of all passes; 0: it is not known yet.
	TasksTotal int64 `json:"tasksTotal"`
	// Pass is the number of the current pass.
	Pass int32 `json:"pass"`
	// Passes is the number of passes.
	Passes int32 `json:"passes"`
	// State is the state by the master: running, paused, ended or failed.
	State string `json:"state,omitempty"`
}
