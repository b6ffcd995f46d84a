package podmanager_test

import (
	"bufio"
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"trainmaster/master/podmanager"
	"trainmaster/taskqueue"
)

var update = flag.Bool("update", false, "write the golden files")

// Each file of testdata is a scenario: commands, and below each plan its result.
//
//	config KEY=VALUE...                      settings
//	pod ROLE INDEX ATTEMPT PHASE [WORD...]   the cluster shows a pod: rank=N code=N reason=R message=M disruption=D words=W instance=I ran=SECONDS deleting lost gone
//	away ROLE INDEX ATTEMPT [RANK]           it does not show it any more
//	scale ROLE N                             another goal
//	used POD MIB                             working set of a parameter server
//	hung POD                                 its trainer hangs
//	over                                     the job has ended
//	clean POLICY                             the deletes at the end
//	plan SECONDS [apply]                     a plan at this time of the job clock; apply: the cluster shows what it creates, as pending
func TestPlansAreAsTheirScenariosSay(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) < 8 {
		t.Fatalf("expected 8 scenarios at least, found %d: %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := play(t, want)
			if *update {
				if err := os.WriteFile(file, got, 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if !bytes.Equal(got, want) {
				t.Errorf("found\n%s\nexpected\n%s", got, want)
			}
		})
	}
}

const instance = "one"

type scene struct {
	config podmanager.Config
	state  podmanager.State
	seen   podmanager.Observed
}

// play returns the commands of a scenario with their results.
func play(t *testing.T, text []byte) []byte {
	s := scene{config: podmanager.Config{Job: "j", Instance: instance, MaxRelaunch: 3, OOMFactor: 1.5}}
	var out bytes.Buffer
	for in := bufio.NewScanner(bytes.NewReader(text)); in.Scan(); {
		line := in.Text()
		if strings.HasPrefix(line, "  ") {
			continue // an earlier result
		}
		fmt.Fprintln(&out, line)
		words := strings.Fields(line)
		if len(words) == 0 || strings.HasPrefix(line, "#") {
			continue
		}
		if err := s.do(&out, words); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
	}
	return out.Bytes()
}

func (s *scene) do(out *bytes.Buffer, words []string) error {
	switch words[0] {
	case "config":
		return s.set(words[1:])
	case "pod":
		return s.pod(words[1:])
	case "away":
		rank := 0
		if len(words) > 4 {
			rank = number(words[4])
		}
		s.away(podmanager.Role(words[1]), number(words[2]), number(words[3]), rank)
	case "scale":
		s.state = s.state.Scale(s.config, podmanager.Role(words[1]), number(words[2]))
	case "used":
		s.seen.Used = map[string]int64{words[1]: int64(number(words[2])) << 20}
	case "hung":
		s.seen.Hung = map[string]bool{words[1]: true}
	case "invalid":
		s.seen.Invalid = map[string]string{words[1]: strings.Join(words[2:], " ")}
	case "over":
		s.seen.Over = true
	case "clean":
		for _, a := range podmanager.Clean(podmanager.CleanPolicy(words[1]), s.seen.Pods) {
			fmt.Fprintf(out, "  %s\n", describe(a))
		}
	case "plan":
		d := podmanager.Plan(s.config, s.state, s.seen, taskqueue.Clock(number(words[1])*1000))
		again, err := podmanager.Decode(d.State.Encode())
		if err != nil {
			return err
		}
		s.state = again
		fmt.Fprintf(out, "  state %s\n", d.State.Encode())
		for _, r := range d.Relaunches {
			fmt.Fprintf(out, "  ended %s %s memory=%d done=%q: %s\n", r.Name, r.Outcome, r.Memory, r.Done, r.Reason)
		}
		if d.End != nil {
			verb := map[bool]string{false: "complete-job", true: "fail-job"}[d.End.Failed]
			fmt.Fprintf(out, "  %s: %s\n", verb, d.End.Reason)
		}
		for _, a := range d.Actions {
			fmt.Fprintf(out, "  %s\n", describe(a))
			if a.Verb == podmanager.Create && len(words) > 2 {
				if err := s.pod([]string{string(a.Role), fmt.Sprint(a.Index), fmt.Sprint(a.Attempt), "Pending", fmt.Sprint("rank=", a.Rank)}); err != nil {
					return err
				}
			}
		}
		if d.Rest >= 0 {
			fmt.Fprintf(out, "  rest %v\n", d.Rest)
		}
	default:
		return fmt.Errorf("unknown command %q", words[0])
	}
	return nil
}

func describe(a podmanager.Action) string {
	switch a.Verb {
	case podmanager.Create:
		return fmt.Sprintf("create %s memory=%d", a.Name, a.Memory)
	case podmanager.Resize:
		return fmt.Sprintf("resize %s uid=%s memory=%d", a.Name, a.UID, a.Memory)
	}
	return fmt.Sprintf("delete %s uid=%s: %s", a.Name, a.UID, a.Reason)
}

func number(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		panic(err)
	}
	return n
}

func (s *scene) set(words []string) error {
	for _, w := range words {
		name, value, _ := strings.Cut(w, "=")
		switch name {
		case "workers":
			s.config.Workers.Count = number(value)
		case "min":
			s.config.Workers.Min = number(value)
		case "group":
			s.config.Workers.Size = number(value)
		case "ps":
			s.config.Servers.Count = number(value)
		case "ps-memory":
			s.config.Servers.Memory = int64(number(value)) << 20
		case "memory":
			s.config.Workers.Memory = int64(number(value)) << 20
		case "max-memory":
			s.config.MaxMemory = int64(number(value)) << 20
		case "no-tasks":
			s.config.NoTasks = true
		case "max-relaunch":
			s.config.MaxRelaunch = number(value)
		case "first-pause":
			s.config.FirstPause = time.Duration(number(value)) * time.Millisecond
		case "fail-fast":
			s.config.FailFast = time.Duration(number(value)) * time.Second
		default:
			return fmt.Errorf("unknown setting %q", name)
		}
	}
	return s.config.Validate()
}

func (s *scene) away(role podmanager.Role, index, attempt, rank int) {
	s.seen.Pods = slices.DeleteFunc(s.seen.Pods, func(p podmanager.Pod) bool {
		return p.Role == role && p.Index == index && p.Attempt == attempt && p.Rank == rank
	})
}

func (s *scene) pod(words []string) error {
	p := podmanager.Pod{Role: podmanager.Role(words[0]), Index: number(words[1]), Attempt: number(words[2]), Phase: podmanager.Phase(words[3]), Instance: instance}
	p.Size = s.config.Size(p.Role)
	exit := podmanager.Exit{}
	for _, w := range words[4:] {
		name, value, _ := strings.Cut(w, "=")
		value = strings.ReplaceAll(value, "_", " ")
		switch name {
		case "rank":
			p.Rank = number(value)
		case "code":
			exit.Code = number(value)
			p.Exit = &exit
		case "reason":
			exit.Reason = value
		case "message":
			exit.Message = value
		case "ran":
			p.Ran = time.Duration(number(value)) * time.Second
		case "disruption":
			p.Disruption = value
		case "words":
			p.Words = value
		case "limit":
			p.Memory = int64(number(value)) << 20
		case "instance":
			p.Instance = value
		case "deleting":
			p.Deleting = true
		case "lost":
			p.Lost = true
		case "gone":
			p.Gone = true
		default:
			return fmt.Errorf("unknown word %q", w)
		}
	}
	p.Name = podmanager.NameOfRank("j", p.Role, p.Index, p.Attempt, p.Rank)
	p.UID = "u-" + p.Name
	s.away(p.Role, p.Index, p.Attempt, p.Rank)
	s.seen.Pods = append(s.seen.Pods, p)
	return nil
}
