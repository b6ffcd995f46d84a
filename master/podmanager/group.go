package podmanager

// PodEnd is the end of a pod.
type PodEnd struct {
	Pod     Pod
	Outcome Outcome
	Reason  string
}

// weight orders the ends of the pods of an attempt that are seen together: the end with the highest weight is the cause. A pod that has lost another
// pod of its group exits with any code, so a code counts only if no other cause is seen.
var weight = [...]int{Completed: 0, Charged: 1, Free: 2, OutOfMemory: 3, Usage: 4}

// end returns why an attempt has ended. It has ended if one of its pods has ended with other than 0, or if all pods of the group have completed.
func (c Config) end(pods []Pod) (cause PodEnd, isOver bool) {
	completed := 0
	for _, pod := range pods {
		isCause := pod.Deleting || pod.Disruption != "" // of the ends of other pods
		if !pod.Ended() && !isCause {
			continue
		}
		outcome, reason := c.Outcome(pod)
		switch {
		case outcome == Completed:
			completed++
		//guard:group-ends-together
		case pod.Ended():
			isOver = true
		}
		//guard:cause-of-the-end-of-a-group
		if cause.Pod.Name == "" || weight[outcome] > weight[cause.Outcome] {
			cause = PodEnd{pod, outcome, reason}
		}
	}
	return cause, isOver || len(pods) > 0 && completed == c.Size(pods[0].Role)
}

// Ends returns the pods whose trainers have ended or cannot continue: pods that have ended, and pods of ended attempts with the cause of the end.
// An attempt before the attempt in the state has ended.
func (c Config) Ends(s State, pods []Pod) (list []PodEnd) {
	type attempt struct {
		role           Role
		index, attempt int
		instance       string
	}
	of := func(p Pod) attempt { return attempt{p.Role, p.Index, p.Attempt, p.Instance} }
	groups := map[attempt][]Pod{}
	for _, pod := range pods {
		groups[of(pod)] = append(groups[of(pod)], pod)
	}
	causes := map[attempt]PodEnd{}
	for a, group := range groups {
		if cause, isOver := c.end(group); isOver {
			causes[a] = cause
		}
	}
	for _, pod := range pods {
		cause, isOver := causes[of(pod)]
		switch {
		//guard:group-ends-its-trainer
		case isOver:
			list = append(list, PodEnd{pod, cause.Outcome, cause.Reason})
		case pod.Ended():
			outcome, reason := c.Outcome(pod)
			list = append(list, PodEnd{pod, outcome, reason})
		case pod.Attempt < s.Slot(pod.Role, pod.Index).Attempt:
			list = append(list, PodEnd{pod, Free, "its attempt has ended"})
		}
	}
	return list
}
