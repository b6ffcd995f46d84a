package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"trainmaster/internal/freeport"
	"trainmaster/scripts/prepared"
)

// elastic is a job of PyTorch in a ring.
type elastic struct {
	t       testing.TB
	dir     string
	addr    string // of the master
	command []string
	members map[string]*process
}

func (e *elastic) start(ids ...string) {
	e.t.Helper()
	for _, id := range ids {
		args := append([]string{"worker", "--addr", e.addr, "--id", id, "--stop-grace", "2s", "--"}, e.command...)
		e.members[id] = start(e.t, id, e.dir, args...)
	}
}

// ringState is a part of the output of `master ring -o json`.
type ringState struct {
	State   string
	Members []struct{ ID string }
}

func (e *elastic) ring() (v ringState) {
	e.t.Helper()
	out, err := command(e.t.Context(), e.t, e.dir, "ring", "--addr", e.addr, "-o", "json").Output()
	if err == nil {
		err = json.Unmarshal(out, &v)
	}
	if err != nil {
		e.t.Fatalf("master ring: %v", err)
	}
	return v
}

var elasticStep = regexp.MustCompile(`(?m)^step (\d+) generation (\d+) world (\d+)$`)

// await waits for a step of a number of processes in a later generation than after, and returns the step and the generation.
func (e *elastic) await(world, after int) (step, generation int) {
	e.t.Helper()
	eventually(e.t, fmt.Sprintf("a step of %d processes after generation %d", world, after), func() (bool, string) {
		last := "none"
		for _, p := range e.members {
			for _, m := range elasticStep.FindAllStringSubmatch(p.log(), -1) {
				last = m[0]
				if n, _ := strconv.Atoi(m[2]); n > after && m[3] == strconv.Itoa(world) {
					step, _ = strconv.Atoi(m[1])
					generation = n
					return true, m[0]
				}
			}
		}
		return false, last
	})
	return step, generation
}

// The program of docs/rendezvous.md runs with the commands of the page. Only the port, the interpreter and the path are replaced.
func TestRendezvousPage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/rendezvous.md")
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile("(?s)## A program of your own.*?```sh\n(.*?)```").FindSubmatch(page)
	if block == nil {
		t.Fatal("expected commands in docs/rendezvous.md")
	}
	script, err := filepath.Abs("../examples/elastic/sum.py")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	addr, err := freeport.Addr("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	python := prepared.Python(t)
	var processes []*process
	for line := range strings.Lines(pageComment.ReplaceAllString(string(block[1]), "")) {
		words := strings.Fields(strings.NewReplacer("127.0.0.1:8080", addr, "python3", python, "examples/elastic/sum.py", script).Replace(line))
		if words[1] == "--ring" {
			words = append(words, "--listen", addr, "--http", "127.0.0.1:0")
		}
		processes = append(processes, start(t, fmt.Sprint("process ", len(processes)), dir, words[1:]...))
	}
	var logs strings.Builder
	for _, p := range processes {
		p.wantExit(0)
		logs.WriteString(p.log())
	}
	if want := "the sum of 4 ranks is 6"; strings.Count(logs.String(), want) != 1 {
		t.Errorf("expected %q once, found %s", want, logs.String())
	}
}

// F301: real processes of PyTorch train together while a member is killed and another one joins. Each step checks its sum, and the steps continue
// from the checkpoint.
func TestElasticJobOfPyTorch(t *testing.T) {
	t.Parallel()
	python := prepared.Torch(t)
	script, err := filepath.Abs("../examples/elastic/train.py")
	if err != nil {
		t.Fatal(err)
	}
	addr, err := freeport.Addr("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	e := &elastic{t: t, dir: dir, addr: addr, members: map[string]*process{}}
	e.command = []string{"env", "GLOO_SOCKET_IFNAME=lo", python, script, dir, "--steps", "1000000", "--pause", "0.02"}
	m := start(t, "master", dir, "--ring", "2:4", "--ring-window", "1s", "--listen", addr, "--data-dir", filepath.Join(dir, "etcd"))
	e.start("a", "b", "c", "d")
	first, generation := e.await(4, 0)
	victim := e.ring().Members[0].ID // the coordinator
	began := time.Now()
	e.members[victim].kill()
	delete(e.members, victim)
	for id, p := range e.members {
		eventually(t, "the next command of "+id, func() (bool, string) {
			return strings.Contains(p.log(), fmt.Sprintf("msg=\"command started\" generation=%d", generation+1)), tail(p.log(), 3)
		})
	}
	restarted := time.Since(began)
	second, generation := e.await(3, generation)
	t.Logf("after the kill, the commands of the survivors started within %v, and their first step was after %v", restarted, time.Since(began))
	e.start("e")
	third, _ := e.await(4, generation)
	if first >= second || second >= third {
		t.Errorf("expected steps that continue, found %d, %d and %d", first, second, third)
	}
	if r := e.ring(); len(r.Members) != 4 || r.Members[3].ID != "e" || r.State != "running" {
		t.Errorf("expected the newcomer last, found %+v", r)
	}
	if err := os.WriteFile(filepath.Join(dir, "stop"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, p := range e.members {
		p.wantExit(0)
	}
	m.wantExit(0)
}
