package podmanager

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"trainmaster/taskqueue"
)

// Observed is what the cluster and the job are like.
type Observed struct {
	Pods []Pod
	Hung map[string]bool  // names of pods whose trainers hang beyond the hard deadline of a task
	Used map[string]int64 // name of a pod -> bytes of its working set
	Over bool             // the job has ended: nothing is created or replaced

	Invalid map[string]string // name of a pod that the cluster refuses with ErrInvalid -> its words
}

// Verb is what an action does.
type Verb uint8

// The verbs.
const (
	Create Verb = iota
	Delete      // with the UID
	Resize      // change the memory of a pod in place
)

func (v Verb) String() string { return [...]string{"create", "delete", "resize"}[v] }

// Action is one step towards the goal.
type Action struct {
	Verb    Verb
	Name    string // of the pod
	UID     string // of a pod to delete or resize
	Role    Role
	Index   int
	Attempt int
	Rank    int    // of a pod to create
	Size    int    // of the group of a pod to create
	Memory  int64  // of a pod to create or resize; 0: as configured
	Reason  string // of a delete
}

// End ends the job.
type End struct {
	Failed bool // the job cannot continue; false: all workers of a job without tasks have completed
	Reason string
}

// Relaunch is a decision to replace the pods of an attempt, or not.
type Relaunch struct {
	Name    string // of the pod whose end has ended the attempt
	Role    Role
	Outcome Outcome
	Reason  string
	Memory  int64 // of the next attempt, if it grew
	Done    Done  // there is no next attempt
}

// Decision is the result of [Plan].
type Decision struct {
	State      State // to store before the actions
	Actions    []Action
	End        *End          // of the job
	Relaunches []Relaunch    // that the next state has, and the last state did not have
	Rest       time.Duration // until the next action by time; negative: none is due by time
}

const (
	firstBackoff = time.Second
	maxBackoff   = 5 * time.Minute
	calm         = 10 * time.Minute // after which a pod is not in a row with the attempts before
	keptEnded    = 3                // ended attempts of an index that keep their logs
)

// backoff is the pause before a relaunch. row counts the relaunches in a row, from 1.
func (c Config) backoff(row int) time.Duration {
	return min(cmp.Or(c.FirstPause, firstBackoff)<<min(row-1, 20), maxBackoff)
}

// Plan decides what is created, replaced and deleted. The caller must store Decision.State before it executes the actions.
func Plan(c Config, stored State, seen Observed, now taskqueue.Clock) Decision {
	p := &planner{config: c, now: now, seen: seen, pods: map[key][]Pod{}}
	p.State, p.Rest = stored.clone(), -1
	if seen.Over {
		return p.Decision
	}
	for _, pod := range seen.Pods {
		p.pods[key{pod.Role, pod.Index}] = append(p.pods[key{pod.Role, pod.Index}], pod)
	}
	for _, r := range roles {
		p.role(r)
	}
	left, completed := p.ends(Worker)
	//guard:fewer-than-min-fails
	if reason := p.hopeless(); reason != "" {
		//guard:failed-job-creates-nothing
		p.Actions, p.End = nil, &End{Failed: true, Reason: reason}
	} else if p.config.NoTasks && left > 0 && completed == left {
		//guard:workers-complete-the-job
		p.Actions, p.End = nil, &End{Reason: fmt.Sprintf("%d workers have completed", completed)}
	}
	slices.SortStableFunc(p.Actions, func(a, b Action) int { return cmp.Compare(order(a), order(b)) })
	return p.Decision
}

// order puts deletes before creates, which may need their quota.
func order(a Action) int {
	if a.Verb == Delete {
		return 0
	}
	return 1
}

type key struct {
	role  Role
	index int
}

type planner struct {
	Decision
	config Config
	now    taskqueue.Clock
	seen   Observed
	pods   map[key][]Pod
	fatal  string
}

// role plans the pods of one role.
func (p *planner) role(r Role) {
	goal := p.config.Goal(p.State, r)
	if goal != p.State.Goals[r] {
		p.State.setGoal(r, goal)
	}
	end := goal.Count
	for k := range p.pods {
		if k.role == r {
			end = max(end, k.index+1)
		}
	}
	for _, s := range p.State.Slots {
		if s.Role == r {
			end = max(end, s.Index+1)
		}
	}
	for i := range end {
		p.index(p.State.Slot(r, i), i < goal.Count)
	}
}

// index plans one index: the pods of its group.
func (p *planner) index(slot Slot, wanted bool) {
	pods := slices.SortedFunc(slices.Values(p.pods[key{slot.Role, slot.Index}]), func(a, b Pod) int {
		return cmp.Or(cmp.Compare(b.Attempt, a.Attempt), cmp.Compare(a.Rank, b.Rank))
	})
	size := p.config.Size(slot.Role)
	for _, pod := range pods {
		//guard:pod-of-another-instance-replaced
		if pod.Instance != p.config.Instance && pod.Attempt >= slot.Attempt {
			slot.Row++
			//guard:pod-of-another-instance-has-a-pause
			slot.Attempt, slot.After = pod.Attempt+1, p.now.Add(p.config.backoff(slot.Row))
		}
		if pod.Instance != p.config.Instance {
			continue
		}
		if pod.Attempt > slot.Attempt { // the state is older than the pod
			slot.Attempt, slot.Done = pod.Attempt, NotDone
		}
		//guard:group-of-another-size-replaced
		if pod.Attempt == slot.Attempt && max(1, pod.Size) != size && slot.Done == NotDone {
			p.next(&slot, 0)
		}
	}
	current := slices.DeleteFunc(slices.Clone(pods), func(pod Pod) bool { return pod.Instance != p.config.Instance || pod.Attempt != slot.Attempt })
	end, isOver := p.config.end(current)
	switch {
	case !wanted:
		p.unwanted(&slot, current)
	case slot.Done != NotDone:
	case isOver:
		p.relaunch(&slot, end)
		current = nil
	//guard:hung-pod-deleted
	case len(current) > 0 && (slot.Hung || p.seen.Hung[Name(p.config.Job, slot.Role, slot.Index, slot.Attempt)]):
		slot.Hung = true
		for _, pod := range current {
			if !pod.Ended() {
				p.remove(pod, hungReason)
			}
		}
	case slot.Role == Server && len(current) > 0 && current[0].Memory > 0 && !current[0].Deleting:
		p.resize(&slot, current[0])
	}
	p.State.set(slot)
	//guard:next-attempt-after-end
	if p.retire(slot, pods, wanted) {
		return
	}
	if wanted && slot.Done == NotDone {
		p.create(slot, current)
	}
}

// create creates the pods of an attempt that do not exist.
func (p *planner) create(slot Slot, current []Pod) {
	//guard:relaunch-backoff
	if rest := slot.After.Sub(p.now); rest > 0 {
		p.wait(rest)
		return
	}
	size := p.config.Size(slot.Role)
	exists := make([]bool, size)
	for _, pod := range current {
		exists[pod.Rank] = true
	}
	for rank := range size {
		//guard:missing-pods-only
		if exists[rank] {
			continue
		}
		name := NameOfRank(p.config.Job, slot.Role, slot.Index, slot.Attempt, rank)
		//guard:invalid-template-fails-the-job
		if words := p.seen.Invalid[name]; words != "" && p.fatal == "" && p.isFirst(slot.Role) {
			p.fatal = clip(fmt.Sprintf("pod %s: %s", name, words))
		}
		p.Actions = append(p.Actions, Action{
			Verb: Create, Name: name, Role: slot.Role, Index: slot.Index, Attempt: slot.Attempt, Rank: rank, Size: size, Memory: slot.Memory,
		})
	}
}

// isFirst reports whether no pod of a role has existed: nothing shows that its template is valid. A policy of the cluster can refuse pods of a running
// job, and must not end it.
func (p *planner) isFirst(r Role) bool {
	for k, pods := range p.pods {
		if k.role == r && len(pods) > 0 {
			return false
		}
	}
	return !slices.ContainsFunc(p.State.Slots, func(s Slot) bool { return s.Role == r && s.Attempt > 0 })
}

// retire removes the pods of an index that are not of its attempt. The logs of the last attempts are kept. It reports whether such a pod has not
// ended: the next attempt waits for it.
func (p *planner) retire(slot Slot, pods []Pod, wanted bool) (runs bool) {
	reason := "its attempt has ended"
	if !wanted {
		reason = "fewer pods are wanted"
	}
	ended, last := 0, -1
	for _, pod := range pods {
		switch {
		case pod.Gone:
		case pod.Instance != p.config.Instance:
			p.remove(pod, "of another instance of the job")
		//guard:pods-of-the-attempt-stay
		case pod.Attempt == slot.Attempt && slot.Done == NotDone && wanted:
		//guard:late-pod-removed
		case !pod.Ended():
			p.remove(pod, reason)
			runs = true
		case !pod.Stopped() && !pod.Deleting && pod.Attempt < slot.Attempt:
			p.sidecars(slot, pod)
		default:
			if pod.Attempt != last {
				ended, last = ended+1, pod.Attempt
			}
			if ended > keptEnded {
				p.remove(pod, "logs of later attempts are kept")
			}
		}
	}
	return runs
}

// sidecarGrace is the time that other containers of a pod have to end after its container "main".
const sidecarGrace = time.Minute

// sidecars removes a pod of an earlier attempt whose other containers do not end: it holds its resources.
func (p *planner) sidecars(slot Slot, pod Pod) {
	//guard:pod-with-sidecar-removed
	if rest := slot.After.Add(sidecarGrace).Sub(p.now); rest > 0 {
		p.wait(rest)
		return
	}
	p.remove(pod, "its container main has ended, and others run")
}

// wait makes the next plan due.
func (p *planner) wait(rest time.Duration) {
	if p.Rest < 0 || rest < p.Rest {
		p.Rest = rest
	}
}

// nearLimit is the share of its memory from which a parameter server gets more.
const nearLimit = 0.9

// resize raises the memory of a parameter server that is near its limit, in place: its end would cost the updates since the last checkpoint set.
func (p *planner) resize(slot *Slot, pod Pod) {
	//guard:server-near-its-limit
	if slot.Memory <= pod.Memory && float64(p.seen.Used[pod.Name]) >= nearLimit*float64(pod.Memory) {
		if more := p.config.grow(slot.Role, pod.Memory); more > 0 {
			slot.Memory, slot.Raised = more, true
		}
	}
	if slot.Memory > pod.Memory {
		p.Actions = append(p.Actions, Action{Verb: Resize, Name: pod.Name, UID: pod.UID, Role: pod.Role, Index: pod.Index, Attempt: pod.Attempt, Memory: slot.Memory})
	}
}

const hungReason = "its trainer hangs beyond the hard deadline of its task"

// remove deletes a pod, once.
func (p *planner) remove(pod Pod, reason string) {
	if !pod.Deleting {
		p.Actions = append(p.Actions, Action{Verb: Delete, Name: pod.Name, UID: pod.UID, Role: pod.Role, Index: pod.Index, Attempt: pod.Attempt, Reason: reason})
	}
}

// unwanted begins an index above the goal again when its pods have ended: if the goal grows later, it gets the next name and no charges. Before
// that, the deletion of the pods gives the trainer the time to leave.
func (p *planner) unwanted(slot *Slot, current []Pod) {
	runs := slices.ContainsFunc(current, func(pod Pod) bool { return !pod.Ended() })
	if !runs && (len(current) > 0 || slot.Done != NotDone) {
		slot.renew()
	}
}

// relaunch decides what follows the end of an attempt.
func (p *planner) relaunch(slot *Slot, end PodEnd) {
	pod, outcome, reason := end.Pod, end.Outcome, end.Reason
	//guard:hung-pod-charged
	if slot.Hung && outcome == Free {
		outcome, reason = Charged, hungReason
	}
	done := Relaunch{Name: pod.Name, Role: pod.Role, Outcome: outcome, Reason: reason}
	if p.now.Sub(slot.After) > calm {
		slot.Row = 0
	}
	slot.Reason = reason
	switch {
	case outcome == Usage:
		if p.fatal == "" {
			p.fatal = fmt.Sprintf("pod %s: %s", pod.Name, reason)
		}
		slot.Done = GivenUp
	case outcome == Completed && slot.Role == Worker:
		slot.Done = HasDone
	//guard:refused-resize-in-the-next-pod
	case outcome == OutOfMemory && slot.Raised && slot.Memory > pod.Memory: // the resize was refused, or came too late
		done.Memory = slot.Memory
		p.next(slot, 0)
	case outcome == OutOfMemory && p.config.grow(slot.Role, slot.Memory) > 0:
		slot.Memory = p.config.grow(slot.Role, slot.Memory)
		done.Memory = slot.Memory
		p.next(slot, 0)
	case outcome == OutOfMemory, outcome == Charged:
		//guard:relaunch-charged
		slot.Charged++
		//guard:index-given-up
		if slot.Charged > p.config.MaxRelaunch {
			slot.Done = GivenUp
			break
		}
		slot.Row++
		p.next(slot, p.config.backoff(slot.Row))
	default: // Free, or a parameter server that left a running job
		slot.Row++
		p.next(slot, p.config.backoff(slot.Row))
	}
	done.Done = slot.Done
	p.Relaunches = append(p.Relaunches, done)
}

// next begins the next attempt after a pause.
func (p *planner) next(slot *Slot, pause time.Duration) {
	slot.Attempt++
	slot.Hung, slot.Raised = false, false
	slot.After = p.now.Add(pause)
}

// hopeless returns why the job cannot continue; "": it can.
func (p *planner) hopeless() string {
	if p.fatal != "" {
		return p.fatal
	}
	for _, r := range roles {
		count := p.State.Goals[r].Count
		left, completed := p.ends(r)
		least := min(p.config.group(r).Min, count)
		switch {
		case left < least:
			last := p.lastGivenUp(r)
			return clip(fmt.Sprintf("%d of %d %s pods are left, expected %d at least; %s gave up after %d charged relaunches: %s",
				left, count, r, least, Name(p.config.Job, r, last.Index, last.Attempt), last.Charged, last.Reason))
		case count > 0 && completed == left && !(p.config.NoTasks && r == Worker):
			return fmt.Sprintf("no %s pod is left: expected the job to end first, found %d completed and %d given up", r, completed, count-left)
		}
	}
	return ""
}

// ends counts the wanted indexes of a role: left are not given up, and completed is a part of left.
func (p *planner) ends(r Role) (left, completed int) {
	left = p.State.Goals[r].Count
	for _, s := range p.State.Slots {
		switch {
		case s.Role != r || s.Index >= p.State.Goals[r].Count:
		case s.Done == GivenUp:
			left--
		case s.Done == HasDone:
			completed++
		}
	}
	return left, completed
}

// lastGivenUp returns the wanted index with the highest number that is given up.
func (p *planner) lastGivenUp(r Role) (last Slot) {
	for _, s := range p.State.Slots {
		if s.Role == r && s.Index < p.State.Goals[r].Count && s.Done == GivenUp {
			last = s
		}
	}
	return last
}

// CleanPolicy says which pods are deleted at the end of a job.
type CleanPolicy string

// The policies.
const (
	CleanRunning CleanPolicy = "running"
	CleanAll     CleanPolicy = "all"
	CleanNone    CleanPolicy = "none"
)

// Clean returns the deletes at the end of a job.
func Clean(policy CleanPolicy, pods []Pod) (list []Action) {
	for _, pod := range pods {
		switch {
		case pod.Gone || pod.Deleting || policy == CleanNone:
			continue
		//guard:clean-ends-sidecars
		case policy == CleanRunning && pod.Stopped():
			continue
		}
		list = append(list, Action{Verb: Delete, Name: pod.Name, UID: pod.UID, Role: pod.Role, Index: pod.Index, Attempt: pod.Attempt, Reason: "the job has ended"})
	}
	return list
}

// Scale returns the state with another number of pods of a role. Indices that are given up begin again, without charges, and so do completed
// indices of a job with tasks: they can train the tasks of other workers.
func (s State) Scale(c Config, r Role, count int) State {
	s = s.clone()
	s.setGoal(r, Goal{Given: c.group(r).Count, Count: count, Annotated: s.Goals[r].Annotated})
	for i := range s.Slots {
		//guard:scale-begins-again
		if slot := &s.Slots[i]; slot.Role == r && (slot.Done == GivenUp || slot.Done == HasDone && !c.NoTasks) {
			slot.renew()
		}
	}
	return s
}

// Follow returns the state with the number of pods that an annotation wants. applied is false, and the state the same, if this number was applied
// before: a later request may have changed the number since.
func (s State) Follow(c Config, r Role, wanted int) (next State, applied bool) {
	//guard:annotation-applied-once
	if s.Goals[r].Annotated == wanted {
		return s, false
	}
	next = s.Scale(c, r, wanted)
	goal := next.Goals[r]
	goal.Annotated = wanted
	next.setGoal(r, goal)
	return next, true
}
