package pods

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"trainmaster/master/committer"
	"trainmaster/master/podmanager"
)

// Status describes a pod, or a pod that does not exist yet.
type Status struct {
	Name    string
	Role    podmanager.Role
	Index   int
	Attempt int
	Rank    int    // in its group
	Phase   string // of the pod or the index
	Charged int    // relaunches at the cost of the index
	Memory  int64  // bytes, if it grew
	Reason  string // message of the cluster, or why the last attempt ended
}

// Waiting is the phase of an index whose pod does not exist yet.
const Waiting = "Waiting"

// Summary has the pods and the state of their observation.
type Summary struct {
	Pods       []Status // by role, index and rank
	Groups     []Group  // by role, without roles that have no pods
	Problem    string   // why the pods are not observed now; "": they are
	Relaunches map[Cause]int64
	Requests   map[podmanager.Request]int64 // of this process to the API
}

// Summary returns the pods of the job. Only the leader has them: the error of other masters is [committer.ErrNotLeader].
func (m *Manager) Summary() (Summary, error) {
	pods, _ := m.config.Cluster.Pods()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.leads == nil {
		return Summary{}, committer.ErrNotLeader
	}
	s := Summary{Problem: m.config.Cluster.Problem(), Relaunches: maps.Clone(m.relaunches), Requests: m.config.Cluster.Requests()}
	current := map[string]podmanager.Pod{}
	for _, p := range pods {
		current[p.Name] = p
	}
	for _, role := range []podmanager.Role{podmanager.Server, podmanager.Worker} {
		goal := m.config.Pods.Goal(m.shown, role).Count
		first := len(s.Pods)
		for i := range goal {
			for rank := range m.config.Pods.Size(role) {
				s.Pods = append(s.Pods, m.status(m.shown.Slot(role, i), rank, current))
			}
		}
		if g := m.group(role, goal, s.Pods[first:], pods); g.Goal+g.Max+g.Leaving > 0 {
			s.Groups = append(s.Groups, g)
		}
	}
	return s, nil
}

// Group is how far the pods of a role are from their goal. An index below the goal is in one of four states.
type Group struct {
	Role      podmanager.Role
	Goal      int
	Min, Max  int // limits of the goal
	Size      int // pods of an index
	Running   int
	Pending   int // one of its pods does not exist, has not started, or is about to end
	Completed int
	GivenUp   int
	Leaving   int    // pods above the goal that have not ended
	Reason    string // why a pod does not run, otherwise why the last pod ended
}

// Done reports whether each index of the goal runs, has completed or is given up, and no other pod runs.
func (g Group) Done() bool { return g.Pending == 0 && g.Leaving == 0 }

func (m *Manager) group(role podmanager.Role, goal int, list []Status, pods []podmanager.Pod) Group {
	g := Group{Role: role, Goal: goal, Min: m.config.Pods.Servers.Count, Max: m.config.Pods.Servers.Count, Size: m.config.Pods.Size(role)}
	if role == podmanager.Worker {
		g.Min, g.Max = m.config.Pods.Workers.Min, m.config.Pods.Workers.Count
	}
	waits, last := "", podmanager.Slot{}
	for index := range slices.Chunk(list, g.Size) {
		s := slowest(index)
		switch s.Phase {
		case string(podmanager.Running):
			g.Running++
		case string(podmanager.HasDone):
			g.Completed++
		case string(podmanager.GivenUp):
			g.GivenUp++
		default:
			g.Pending++
			if waits == "" && s.Reason != "" {
				waits = s.Name + ": " + s.Reason
			}
		}
		if slot := m.shown.Slot(role, s.Index); slot.Reason != "" && slot.After >= last.After {
			last = slot
		}
	}
	for _, p := range pods {
		if p.Role == role && p.Instance == m.instance && p.Index >= goal && !p.Ended() {
			g.Leaving++
		}
	}
	switch {
	case waits != "":
		g.Reason = waits
	case last.Reason != "":
		g.Reason = fmt.Sprintf("%s-%d: %s", role, last.Index, last.Reason)
	}
	return g
}

// slowest returns the pod with the state of its index: a pod that does not run, otherwise a running pod. A completed pod waits for its group.
func slowest(group []Status) Status {
	rank := func(s Status) int {
		switch s.Phase {
		case string(podmanager.Succeeded):
			return 0
		case string(podmanager.Running):
			return 1
		}
		return 2
	}
	return slices.MaxFunc(group, func(a, b Status) int { return cmp.Compare(rank(a), rank(b)) })
}

func (m *Manager) status(slot podmanager.Slot, rank int, pods map[string]podmanager.Pod) Status {
	s := Status{
		Name: podmanager.NameOfRank(m.config.Pods.Job, slot.Role, slot.Index, slot.Attempt, rank), Role: slot.Role, Index: slot.Index, Attempt: slot.Attempt,
		Rank: rank, Phase: Waiting, Charged: slot.Charged, Memory: slot.Memory, Reason: slot.Reason,
	}
	p, exists := pods[s.Name]
	switch {
	case slot.Done != podmanager.NotDone:
		s.Phase = string(slot.Done)
	case exists:
		s.Phase = string(p.Phase)
		if p.Deleting {
			s.Phase = "Terminating"
		}
		if p.Words != "" {
			s.Reason = p.Words
		}
	}
	for _, request := range []string{s.Name + resizeSuffix, s.Name} {
		if r := m.refused[request]; r.words != "" && slot.Done == podmanager.NotDone {
			s.Reason = r.words
		}
	}
	return s
}

const (
	completeTimeout = 30 * time.Second // for workers, after the end of the job
	cleanTimeout    = time.Minute
	cleanPoll       = 500 * time.Millisecond
)

// Clean deletes pods of a job that has ended, as the policy says. Workers get the time to complete first. It returns an error if the cluster does
// not take the deletes within a minute.
func (m *Manager) Clean(ctx context.Context) error {
	if m.config.Clean == podmanager.CleanNone {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, completeTimeout+cleanTimeout, fmt.Errorf("the cluster did not take the deletes within %v", completeTimeout+cleanTimeout))
	defer cancel()
	clock := time.NewTicker(cleanPoll)
	defer clock.Stop()
	var last error
	for n := 0; ; n++ {
		pods, err := m.config.Cluster.List(ctx)
		//guard:workers-complete-before-clean
		if last = err; err == nil && (time.Duration(n)*cleanPoll >= completeTimeout || !slices.ContainsFunc(pods, func(p podmanager.Pod) bool {
			return p.Role == podmanager.Worker && !p.Stopped() && !p.Lost && !p.Deleting && p.Phase == podmanager.Running // its phase follows the end of main
		})) {
			list := podmanager.Clean(m.config.Clean, pods)
			for _, a := range list {
				if err := m.config.Cluster.Delete(ctx, a); err != nil {
					last = err
				}
			}
			if last == nil {
				m.config.Log.WithField("deleted", len(list)).Info("pods of the job cleaned")
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("clean pods: %w: %w", context.Cause(ctx), last)
		case <-clock.C:
		}
	}
}
