package podmanager

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
)

// Role is the purpose of a pod.
type Role string

// The roles.
const (
	Worker Role = "worker"
	Server Role = "ps"
)

// roles lists all roles in the order in which pods are created: workers wait for parameter servers.
var roles = []Role{Server, Worker}

// Name returns the name of the pod of rank 0 of an attempt. A trainer has the name of this pod.
func Name(job string, role Role, index, attempt int) string {
	return fmt.Sprintf("%s-%s-%d-%d", job, role, index, attempt)
}

// NameOfRank returns the name of a pod of an attempt. The numbers behind the last role are index, attempt and, above 0, rank.
func NameOfRank(job string, role Role, index, attempt, rank int) string {
	name := Name(job, role, index, attempt)
	if rank > 0 {
		name += fmt.Sprintf("-%d", rank)
	}
	return name
}

// Pod is a pod of the job, as the cluster reports it.
type Pod struct {
	Name     string
	UID      string
	Instance string // of the job: pods of another instance are replaced
	Role     Role
	Index    int
	Attempt  int
	Rank     int    // in its group
	Size     int    // of its group; 0: 1
	Address  string // IP; empty before the pod runs
	Memory   int64  // limit of the container "main" in bytes; 0: none

	Phase Phase
	// Exit is of the container "main". It is nil while the container has not ended.
	Exit *Exit
	Ran  time.Duration // from its start to its end, if [Config.FailFast] needs it
	// Disruption is the reason of the condition DisruptionTarget. It is empty without the condition.
	Disruption string
	// Deleting is set when the deletion has begun.
	Deleting bool
	// Lost is set if the node does not answer, or if the deletion is overdue.
	Lost bool
	// Gone is set if the pod was in the cluster in this term and has been removed.
	Gone bool
	// Words is the message of the cluster about a pod that cannot start or has ended.
	Words string
}

// Phase is the phase of a pod.
type Phase string

// The phases, as Kubernetes names them.
const (
	Pending   Phase = "Pending"
	Running   Phase = "Running"
	Succeeded Phase = "Succeeded"
	Failed    Phase = "Failed"
)

// Request is a kind of requests to the cluster.
type Request struct {
	Verb string // of HTTP in lower case, or watch
	Code int    // of the answer; 0: none
}

// Exit is the end of a container.
type Exit struct {
	Code    int
	Reason  string // such as OOMKilled
	Message string // last words: the termination message
	// Container is the name of an init container; "": it is the container "main".
	Container string
}

// Stopped reports whether no container of the pod runs any more. A pod with a sidecar can have ended before.
func (p Pod) Stopped() bool { return p.Gone || p.Phase == Succeeded || p.Phase == Failed }

// Ended reports whether the container of the pod does not run any more, as far as the cluster knows.
func (p Pod) Ended() bool {
	return p.Gone || p.Lost || p.Exit != nil || p.Phase == Succeeded || p.Phase == Failed
}

// Outcome is the kind of an end.
type Outcome uint8

// The outcomes.
const (
	Free        Outcome = iota // replaced without a charge.
	Completed                  // exit code 0.
	OutOfMemory                // replaced by a pod with more memory.
	Charged                    // replaced at the cost of one relaunch.
	Usage                      // exit code 64, or another end that the next start would repeat.
)

func (o Outcome) String() string {
	return [...]string{"disrupted", "completed", "out-of-memory", "failed", "usage"}[o]
}

const (
	exitUsage   = 64
	exitKilled  = 128 + 9
	exitStopped = 128 + 15
	oomKilled   = "OOMKilled"
)

// ExitTemporary is the exit code of a process that could not work for now: for this program, etcd or the master cannot be reached. Its value is
// EX_TEMPFAIL of sysexits.h.
const ExitTemporary = 75

// Outcome returns why an ended pod has ended, and the reason in words.
func (p Pod) Outcome() (Outcome, string) {
	switch e := p.Exit; {
	case e != nil && e.Reason == oomKilled:
		return OutOfMemory, p.words("the container exceeded its memory")
	//guard:disrupted-pod-not-charged
	case p.Disruption != "":
		return Free, p.words("disrupted: " + p.Disruption)
	case p.Deleting:
		return Free, p.words("deleted")
	case e == nil && p.Phase == Succeeded:
		return Completed, ""
	case e == nil && p.Phase == Failed:
		return Free, p.words("failed without an exit code")
	case e == nil && p.Lost:
		return Free, p.words("its node does not answer")
	case e == nil:
		return Free, p.words("deleted")
	case e.Code == 0:
		return Completed, ""
	case e.Code == exitKilled || e.Code == exitStopped:
		return Free, p.words(fmt.Sprintf("ended by signal %d", e.Code-128))
	//guard:temporary-failure-not-charged
	case e.Code == ExitTemporary:
		return Free, p.words("exit code 75 (temporary failure)")
	case e.Code == exitUsage:
		return Usage, p.words("exit code 64 (usage)")
	default:
		return Charged, p.words(fmt.Sprintf("exit code %d", e.Code))
	}
}

// maxWords is the largest size of a reason in bytes.
const maxWords = 256

// words adds what the cluster or the container said to a reason. The last line of a container that a signal has ended says nothing about its end.
func (p Pod) words(reason string) string {
	said := p.Words
	//guard:no-words-of-a-killed-container
	if e := p.Exit; e != nil && e.Message != "" && e.Code != exitKilled && e.Code != exitStopped {
		said = lastLine(e.Message)
	}
	if said = strings.Join(strings.Fields(said), " "); said != "" {
		reason += ": " + said
	}
	if p.Exit != nil && p.Exit.Container != "" {
		reason = "container " + p.Exit.Container + ": " + reason
	}
	return clip(reason)
}

// OneLine returns a message of the cluster as a reason: one line, without control characters, of at most 256 bytes.
func OneLine(message string) string { return clip(strings.Join(strings.Fields(message), " ")) }

// lastLine returns the last line of a message, which may be the end of a log. After a usage error of trainmaster it is the line before
// the hint at the help.
func lastLine(message string) string {
	lines := slices.DeleteFunc(strings.Split(message, "\n"), func(l string) bool {
		return strings.TrimSpace(l) == "" || strings.HasPrefix(l, "See '") && strings.HasSuffix(strings.TrimSpace(l), "--help'.")
	})
	if len(lines) == 0 {
		return ""
	}
	return lines[len(lines)-1]
}

// clip removes characters that are not printable, and cuts a text to valid UTF-8 of at most maxWords bytes, and of 2 maxWords bytes in JSON, which escapes some
// characters. The end of a message says more than its middle.
func clip(s string) string {
	//guard:words-without-control-characters
	s = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
	const head, gap = 64, " ... "
	for most := maxWords; ; most -= 32 {
		cut := s
		if len(s) > most {
			cut = strings.ToValidUTF8(s[:min(head, most/2)], "") + gap + strings.ToValidUTF8(s[len(s)-(most-min(head, most/2)-len(gap)):], "")
		}
		//guard:words-fit-as-json
		if encoded, err := json.Marshal(cut); err == nil && len(encoded) <= 2*maxWords {
			return cut
		}
	}
}
