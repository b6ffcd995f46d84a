package pods

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"math"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"trainmaster/master/component"
	"trainmaster/master/podmanager"
	"trainmaster/master/store"
	"trainmaster/taskqueue"
)

// Cluster executes actions and observes pods.
type Cluster interface {
	// Watch observes the pods until ctx ends, and calls changed after each change. It retries after all errors.
	Watch(ctx context.Context, changed func()) error
	// Pods returns the observed pods. known is false before the first list.
	Pods() (pods []podmanager.Pod, known bool)
	// Problem returns why the pods are not observed now; "": they are.
	Problem() string
	// Create creates a pod, or returns the pod of an earlier create.
	Create(ctx context.Context, a podmanager.Action, instance string) (podmanager.Pod, error)
	// Delete deletes a pod with the UID of the action. Without such a pod it does nothing.
	Delete(ctx context.Context, a podmanager.Action) error
	// Resize changes the memory of a pod in place. Without a pod with the UID of the action it does nothing.
	Resize(ctx context.Context, a podmanager.Action) error
	// List reads the pods once.
	List(ctx context.Context) ([]podmanager.Pod, error)
	// Requests returns how many requests were made.
	Requests() map[podmanager.Request]int64
	// Note writes an event for users.
	Note(ctx context.Context, reason, message string, warning bool) error
}

// Config holds the dependencies and settings of the component.
type Config struct {
	Pods    podmanager.Config // without Instance
	Clean   podmanager.CleanPolicy
	Cluster Cluster
	Store   store.Store
	// Ended is called repeatedly for each pod that has ended, before its end is stored. A pod of an ended group has ended. nil: nothing is called.
	Ended func(name, reason string)
	// Registry has the indices of parameter servers; nil: the index of a pod that has ended is free when its lease ends.
	Registry store.Servers
	Log      *logrus.Entry // default: the standard logger
}

// Manager is the component. Its methods may be called at any time.
type Manager struct {
	config   Config
	prepared *term // of the next Run

	mu         sync.Mutex
	leads      *term // nil: this master does not lead
	shown      podmanager.State
	instance   string
	created    map[string]created              // by this leader, and not observed yet
	accepted   map[podmanager.Action]time.Time // deletes and resizes that the cluster has accepted
	inFlight   map[string]bool                 // names of pods with a request in progress
	refused    map[string]refusal              // by name
	relaunches map[Cause]int64
}

// Cause identifies a count of relaunches.
type Cause struct {
	Role    podmanager.Role
	Outcome string
}

// created is a pod whose create was answered.
type created struct {
	podmanager.Pod
	at time.Time
}

type refusal struct {
	words   string
	until   time.Time
	pause   time.Duration
	invalid bool // with [podmanager.ErrInvalid]
}

// again returns the refusal that follows: its pause is twice as long, up to longestPause.
func (r refusal) again(err error, now time.Time) refusal {
	pause := min(max(retryPause, 2*r.pause), longestPause)
	return refusal{err.Error(), now.Add(pause), pause, errors.Is(err, podmanager.ErrInvalid)}
}

const (
	retryPause   = time.Second
	longestPause = 30 * time.Second // between two attempts of a refused create
	checkEvery   = 5 * time.Second  // while a deletion may become overdue
	maxRequests  = 32               // in progress
	observedIn   = 30 * time.Second // a request whose effect is not observed for longer is repeated
)

// New returns the component.
func New(config Config) *Manager {
	if config.Log == nil {
		config.Log = logrus.NewEntry(logrus.StandardLogger())
	}
	return &Manager{config: config, relaunches: map[Cause]int64{}}
}

// Name implements [component.Component].
func (m *Manager) Name() string { return "pods" }

// Init implements [component.Component].
func (m *Manager) Init(context.Context) error { return m.config.Pods.Validate() }

// Prepare reads the state that the previous leader stored.
func (m *Manager) Prepare(ctx context.Context, now component.Term) error {
	value, _, err := m.config.Store.Value(ctx, podmanager.Key)
	if err != nil {
		return fmt.Errorf("read %s: %w", podmanager.Key, err)
	}
	t := &term{
		Manager: m, Term: now, box: now.Effects(taskqueue.OnJobEnded, taskqueue.OnTrainerHung, component.OnServerMemory), stored: value != nil, isNew: value == nil, turn: component.NewSemaphore(),
		known: map[string]podmanager.Pod{}, hung: map[string]bool{}, requests: make(chan struct{}, maxRequests), evicted: map[store.Server]bool{},
	}
	if value != nil {
		//guard:state-of-pods-continues
		if t.state, err = podmanager.Decode(value); err != nil {
			return fmt.Errorf("%w: read %s: %w", taskqueue.ErrDamaged, podmanager.Key, err)
		}
	}
	id := now.JobID()
	m.prepared = t
	m.mu.Lock()
	defer m.mu.Unlock()
	m.instance, m.shown = hex.EncodeToString(id[:]), t.state
	m.created, m.accepted, m.inFlight, m.refused = map[string]created{}, map[podmanager.Action]time.Time{}, map[string]bool{}, map[string]refusal{}
	return nil
}

// term is the state of one term.
type term struct {
	*Manager
	component.Term
	box *component.Mailbox
	// turn guards state, stored and known. A decision is stored before the next begins.
	turn component.Semaphore

	state    podmanager.State          // as stored
	stored   bool                      // state is in the store
	isNew    bool                      // no state was in the store before this term
	known    map[string]podmanager.Pod // pods that were observed in this term
	requests chan struct{}             // holds a token for each request in progress
	running  sync.WaitGroup

	hung    map[string]bool       // names of pods whose trainers hang
	used    map[string]uint64     // address of a parameter server -> working set in bytes
	claims  []store.Server        // of parameter servers, as registered; guarded by mu
	evicted map[store.Server]bool // claims whose eviction has begun
}

// Run observes and acts until ctx ends.
func (m *Manager) Run(ctx context.Context, _ component.Term) error {
	t := m.prepared
	m.lead(t)
	defer m.lead(nil)
	defer t.running.Wait()
	t.background(func() error { return m.config.Cluster.Watch(ctx, t.box.Wake) })
	if m.config.Registry != nil && m.config.Pods.Servers.Count > 0 {
		t.background(func() error { return m.config.Registry.Each(ctx, t.registered) })
	}
	for rest := time.Duration(0); ; {
		t.Clock().Wait(ctx, t.box.Changed(), rest)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		for _, e := range t.box.Take() {
			switch e := e.(type) {
			case taskqueue.TrainerHung:
				t.hung[e.ID] = true // a trainer has the name of its pod
			case component.ServerMemory:
				t.used = e.Used
			}
		}
		next, err := t.round(ctx)
		if rest = next; err != nil && ctx.Err() == nil {
			m.config.Log.WithError(err).Warn("pods not planned, retrying")
			rest = retryPause
		}
	}
}

func (m *Manager) lead(t *term) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.leads = t
}

// background runs a part of the component until it returns.
func (t *term) background(part func() error) {
	t.running.Go(func() { _ = component.Contain(t.config.Log, t.Name(), part) })
}

// round observes, decides, stores and acts. It returns the time until the next round; negative: none is due by time.
func (t *term) round(ctx context.Context) (rest time.Duration, err error) {
	if err := t.turn.Acquire(ctx); err != nil {
		return 0, err
	}
	defer t.turn.Release()
	pods, known := t.observe()
	if !known {
		return -1, nil
	}
	seen := podmanager.Observed{Pods: pods, Hung: t.hung, Used: t.usedBy(pods), Invalid: t.invalid()}
	ends := t.config.Pods.Ends(t.state, pods)
	var now taskqueue.Clock
	var ended []*taskqueue.Gone
	if err := t.Read(ctx, func(q *taskqueue.Queue) { // after the pods: a worker completes after the end of the job
		status, _ := q.Status()
		seen.Over = status == taskqueue.Ended || status == taskqueue.Failed
		now = q.Clock()
		for _, e := range ends {
			if q.HasSession(e.Pod.Name) {
				ended = append(ended, goneOf(e))
			}
		}
	}); err != nil {
		return 0, err
	}
	if t.config.Ended != nil {
		for _, e := range ends {
			t.config.Ended(e.Pod.Name, e.Reason)
		}
	}
	//guard:gone-ends-session
	for _, e := range ended {
		if _, err := t.Submit(ctx, e); err != nil {
			return 0, err
		}
	}
	t.evict(ctx, pods)
	config := t.config.Pods
	config.Instance = t.instance
	d := podmanager.Plan(config, t.state, seen, now)
	if err := t.store(ctx, d, seen.Over); err != nil {
		return 0, err
	}
	t.report(ctx, d.Relaunches)
	wait := t.act(ctx, d.Actions)
	for _, p := range pods {
		if p.Deleting && !p.Ended() {
			wait = sooner(wait, checkEvery)
		}
	}
	if t.awaits() {
		wait = sooner(wait, checkEvery)
	}
	if d.Rest >= 0 {
		wait = sooner(wait, d.Rest+100*time.Millisecond) // the job clock advances with ticks
	}
	return wait, nil
}

// invalid returns the pods that the cluster refuses as invalid. With a state from before this term there are none: the job can have finished tasks.
func (t *term) invalid() map[string]string {
	//guard:led-job-outlives-an-invalid-template
	if !t.isNew {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	words := map[string]string{}
	for name, r := range t.refused {
		if r.invalid {
			words[name] = r.words
		}
	}
	return words
}

// usedBy returns the working sets of parameter servers by the names of their pods.
func (t *term) usedBy(pods []podmanager.Pod) map[string]int64 {
	byHost := map[string]int64{}
	for address, bytes := range t.used {
		if host, _, err := net.SplitHostPort(address); err == nil {
			byHost[host] = int64(min(bytes, math.MaxInt64))
		}
	}
	used := map[string]int64{}
	for _, p := range pods {
		if p.Role == podmanager.Server && p.Phase == podmanager.Running && byHost[p.Address] > 0 {
			used[p.Name] = byHost[p.Address]
		}
	}
	return used
}

// awaits reports whether a created pod has not been observed.
func (t *term) awaits() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.created) > 0
}

func sooner(a, b time.Duration) time.Duration {
	if a < 0 || b < a {
		return b
	}
	return a
}

// goneOf returns the end of the session of a pod.
func goneOf(e podmanager.PodEnd) *taskqueue.Gone {
	charge := e.Outcome == podmanager.Charged || e.Outcome == podmanager.OutOfMemory || e.Outcome == podmanager.Usage
	return &taskqueue.Gone{ID: e.Pod.Name, Charge: charge}
}

// observe returns the pods of the cluster, with the pods that have gone in this term and the pods whose creation was answered only.
func (t *term) observe() (pods []podmanager.Pod, known bool) {
	pods, known = t.config.Cluster.Pods()
	if !known {
		return nil, false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	seen := map[string]bool{}
	for _, p := range pods {
		seen[p.Name] = true
		t.known[p.Name] = p
		delete(t.created, p.Name)
	}
	now, healthy := t.Clock().Now(), t.config.Cluster.Problem() == ""
	for _, name := range slices.Sorted(maps.Keys(t.created)) {
		c := t.created[name]
		if healthy && now.Sub(c.at) > observedIn {
			delete(t.created, name) // it was deleted before it was observed
			continue
		}
		pods = append(pods, c.Pod)
		seen[name] = true
	}
	for _, name := range slices.Sorted(maps.Keys(t.known)) {
		p := t.known[name]
		if seen[name] {
			continue
		}
		if t.state.Slot(p.Role, p.Index).Attempt > p.Attempt {
			delete(t.known, name)
			continue
		}
		p.Gone = true
		pods = append(pods, p)
	}
	return pods, true
}

// store stores a decision if it changes something.
func (t *term) store(ctx context.Context, d podmanager.Decision, over bool) error {
	if over || d.End == nil && t.stored && bytes.Equal(d.State.Encode(), t.state.Encode()) {
		return nil
	}
	return t.commit(ctx, d.State, d.End)
}

// commit stores a state in the fenced transaction of the term, with the end of the job, if there is one.
func (t *term) commit(ctx context.Context, state podmanager.State, end *podmanager.End) error {
	with := taskqueue.StoreKeys{Writes: []taskqueue.Write{{Key: podmanager.Key, Value: state.Encode()}}}
	var event taskqueue.Event = &with
	if end != nil {
		event = &taskqueue.EndJob{Failed: end.Failed, Reason: end.Reason, With: with}
	}
	if a, err := t.Submit(ctx, event); err != nil {
		return err
	} else if a.Err != nil {
		return a.Err
	}
	t.state, t.stored = state, true
	t.mu.Lock()
	defer t.mu.Unlock()
	t.shown = state
	return nil
}

// report logs relaunches, counts them, and writes events.
func (t *term) report(ctx context.Context, list []podmanager.Relaunch) {
	for _, r := range list {
		t.mu.Lock()
		t.relaunches[Cause{r.Role, r.Outcome.String()}]++
		t.mu.Unlock()
		line := t.config.Log.WithFields(logrus.Fields{"pod": r.Name, "outcome": r.Outcome.String(), "reason": r.Reason})
		reason, message := "PodReplaced", fmt.Sprintf("pod %s: %s", r.Name, r.Reason)
		switch {
		case r.Done == podmanager.HasDone:
			line.Info("pod completed")
			continue
		case r.Done == podmanager.GivenUp:
			line.Error("pod given up")
			reason = "PodGivenUp"
		case r.Memory > 0:
			line.WithField("memory", r.Memory).Warn("pod replaced with more memory")
			reason, message = "PodMemoryRaised", fmt.Sprintf("%s: the next attempt has %d MiB", message, r.Memory>>20)
		default:
			line.Warn("pod replaced")
		}
		t.request(func() { _ = t.config.Cluster.Note(ctx, reason, message, true) }) // events are for users only
	}
}

// request runs a call to the cluster concurrently with the decisions.
func (t *term) request(call func()) {
	t.running.Go(func() {
		t.requests <- struct{}{}
		defer func() { <-t.requests }()
		_ = component.Contain(t.config.Log, t.Name(), func() error { call(); return nil })
	})
}

// act begins the requests of actions that are not in progress. It returns the time until a refused create is due; negative: none is.
func (t *term) act(ctx context.Context, actions []podmanager.Action) (rest time.Duration) {
	rest = -1
	now := t.Clock().Now()
	t.mu.Lock()
	maps.DeleteFunc(t.accepted, func(_ podmanager.Action, at time.Time) bool { return now.Sub(at) >= observedIn })
	t.mu.Unlock()
	for _, a := range actions {
		t.mu.Lock()
		key := requestOf(a)
		wait := t.refused[key].until.Sub(now)
		_, isMade := t.created[a.Name] // after the observation of this round
		busy := t.inFlight[key] || a.Verb == podmanager.Create && isMade
		//guard:accepted-request-not-repeated
		if at, ok := t.accepted[a]; ok {
			wait = observedIn - now.Sub(at)
		}
		if !busy && wait <= 0 {
			t.inFlight[key] = true
		}
		t.mu.Unlock()
		switch {
		case busy:
		case wait > 0:
			//guard:refused-create-repeated
			rest = sooner(rest, wait)
		default:
			t.request(func() { t.execute(ctx, a) })
		}
	}
	return rest
}

// requestOf identifies the request of an action: the name of the pod. A refused resize does not delay the end of the pod.
func requestOf(a podmanager.Action) string {
	if a.Verb == podmanager.Resize {
		return a.Name + resizeSuffix
	}
	return a.Name
}

const resizeSuffix = "/resize"

// execute makes the request of an action.
func (t *term) execute(ctx context.Context, a podmanager.Action) {
	var pod podmanager.Pod
	var err error
	switch a.Verb {
	case podmanager.Create:
		pod, err = t.config.Cluster.Create(ctx, a, t.instance)
	case podmanager.Resize:
		err = t.config.Cluster.Resize(ctx, a)
	default:
		err = t.config.Cluster.Delete(ctx, a)
	}
	key := requestOf(a)
	log := t.config.Log.WithField("pod", a.Name)
	isNew := false
	t.mu.Lock()
	delete(t.inFlight, key)
	before := t.refused[key]
	switch {
	case err == nil:
		delete(t.refused, key)
		if now := t.Clock().Now(); a.Verb == podmanager.Create {
			t.created[a.Name] = created{pod, now}
		} else {
			t.accepted[a] = now
		}
	case ctx.Err() == nil:
		isNew = before.words != err.Error()
		t.refused[key] = before.again(err, t.Clock().Now())
	}
	t.mu.Unlock()
	switch {
	case err == nil && a.Verb == podmanager.Create:
		log.Info("pod created")
	case err == nil && a.Verb == podmanager.Resize:
		log.WithField("memory", a.Memory).Warn("parameter server near its memory limit: memory raised in place")
		_ = t.config.Cluster.Note(ctx, "PodMemoryRaised", fmt.Sprintf("pod %s is near its memory limit: it has %d MiB now", a.Name, a.Memory>>20), false) // for users only
	case err == nil:
		log.WithField("reason", a.Reason).Info("pod deleted")
	case isNew:
		log.WithError(err).Warnf("pod not %sd, retrying", a.Verb)
		_ = t.config.Cluster.Note(ctx, "PodRefused", fmt.Sprintf("pod %s: %v", a.Name, err), true)
	}
	t.box.Wake()
}
