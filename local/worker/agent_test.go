package worker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"trainmaster/etcdstore"
	"trainmaster/etcdstore/etcdtest"
	"trainmaster/master"
	"trainmaster/master/component"
	"trainmaster/master/mastertest"
	"trainmaster/master/rendezvous"
	"trainmaster/master/ring"
	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/trainer"
	client "trainmaster/trainer/rendezvous"
)

func start(t *testing.T, store *etcdstore.Store, low, high int) *mastertest.Running {
	t.Helper()
	r := ring.New(ring.Config{Rendezvous: rendezvous.Config{Min: low, Max: high}, Store: store})
	return mastertest.Start(t, store, master.Config{Components: []component.Component{r}, Ring: r})
}

// running is an agent that runs.
type running struct {
	*Agent
	cancel context.CancelFunc
	ended  chan error
	logged *logtest.Hook
}

// notes is a file to which commands append lines.
type notes string

func (n notes) lines() []string {
	text, err := os.ReadFile(string(n))
	if err != nil {
		return nil
	}
	return strings.Split(strings.TrimSpace(string(text)), "\n")
}

// await waits for lines, in any order, anywhere in the file.
func (n notes) await(t *testing.T, want ...string) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for {
		found := "\n" + strings.Join(n.lines(), "\n") + "\n"
		missing := ""
		for _, w := range want {
			if !strings.Contains(found, "\n"+w+"\n") {
				missing = w
			}
		}
		if missing == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("expected %q, found %q", missing, n.lines())
		}
		time.Sleep(20 * time.Millisecond) // the lines are of other processes
	}
}

// work starts an agent whose command is a script of the shell.
func work(t *testing.T, at trainer.Locator, id, script string, change ...func(*Agent)) *running {
	t.Helper()
	logger, logged := logtest.NewNullLogger()
	log := logrus.NewEntry(logger)
	a := &Agent{
		Client:  &client.Client{Locate: at, Member: &pb.RingMember{Id: id, Ports: []uint32{4000}, Processes: 1}, Log: log},
		Command: []string{"/bin/sh", "-c", script}, MaxRestarts: 1, Grace: 2 * time.Second, Log: log,
		Stop: func() syscall.Signal { return syscall.SIGTERM }, Stdout: &bytes.Buffer{}, Stderr: &bytes.Buffer{},
	}
	for _, c := range change {
		c(a)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{a, cancel, make(chan error, 1), logged}
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.ended <- a.Run(ctx)
	}()
	t.Cleanup(func() { cancel(); <-done })
	return r
}

func (r *running) wait(t *testing.T) error {
	t.Helper()
	select {
	case err := <-r.ended:
		r.ended <- err
		return err
	case <-time.After(30 * time.Second):
		t.Fatalf("agent %s: expected its end", r.Client.Member.Id)
		return nil
	}
}

// F303: the processes of a generation end before the next processes start.
func TestAgentRunsTheCommandInEachGeneration(t *testing.T) {
	r := start(t, etcdtest.Store(t), 1, 3)
	file := notes(filepath.Join(t.TempDir(), "notes"))
	script := func(id string) string {
		return fmt.Sprintf(`trap 'echo "%[1]s stops" >> %[2]s; exit 1' TERM; echo "%[1]s $RANK/$WORLD_SIZE" >> %[2]s; while :; do sleep 0.02; done`, id, file)
	}
	work(t, trainer.At(r.Addr), "a", script("a"))
	file.await(t, "a 0/1")
	work(t, trainer.At(r.Addr), "b", script("b"))
	file.await(t, "a 0/2", "b 1/2")
	c := work(t, trainer.At(r.Addr), "c", script("c"))
	file.await(t, "a 0/3", "b 1/3", "c 2/3")
	c.cancel()
	if err := c.wait(t); !errors.Is(err, context.Canceled) {
		t.Errorf("agent c: %v", err)
	}
	file.await(t, "c stops")
	deadline := time.Now().Add(30 * time.Second)
	for { // the second generation of two
		n := 0
		var ofA []string
		for _, line := range file.lines() {
			if strings.HasPrefix(line, "a ") {
				ofA = append(ofA, line)
			}
			if line == "a 0/2" || line == "b 1/2" {
				n++
			}
		}
		if n == 4 {
			want := "a 0/1,a stops,a 0/2,a stops,a 0/3,a stops,a 0/2"
			if found := strings.Join(ofA, ","); found != want {
				t.Errorf("expected %s, found %s", want, found)
			}
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("found %q", file.lines())
		}
		time.Sleep(20 * time.Millisecond) // the lines are of other processes
	}
}

func TestAgentsEndWhenAllCommandsHaveCompleted(t *testing.T) {
	r := start(t, etcdtest.Store(t), 2, 2)
	file := notes(filepath.Join(t.TempDir(), "notes"))
	a := work(t, trainer.At(r.Addr), "a", "exit 0")
	b := work(t, trainer.At(r.Addr), "b", fmt.Sprintf("until test -e %s; do sleep 0.02; done", file))
	select {
	case err := <-a.ended:
		t.Fatalf("agent a ended before the other member has completed: %v", err)
	case <-time.After(300 * time.Millisecond):
	}
	if err := os.WriteFile(string(file), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, w := range []*running{a, b} {
		if err := w.wait(t); err != nil {
			t.Errorf("agent %s: %v", w.Client.Member.Id, err)
		}
	}
	if err := r.Wait(); err != nil {
		t.Errorf("master: %v", err)
	}
}

// F304: a failure of one command restarts all, and only its own failures count against the limit of a member.
func TestAgentGivesUpAfterFailuresOfItsOwn(t *testing.T) {
	r := start(t, etcdtest.Store(t), 1, 2)
	file := notes(filepath.Join(t.TempDir(), "notes"))
	a := work(t, trainer.At(r.Addr), "a", fmt.Sprintf(`echo "a $RANK/$WORLD_SIZE $TORCHELASTIC_RESTART_COUNT" >> %s; while :; do sleep 0.02; done`, file))
	file.await(t, "a 0/1 0")
	b := work(t, trainer.At(r.Addr), "b", fmt.Sprintf(`echo "b $RANK/$WORLD_SIZE" >> %s; exit 7`, file))
	err := b.wait(t)
	if e, ok := errors.AsType[*ExitError](err); !ok || e.Code != 7 || !strings.Contains(e.Reason, "2 times") {
		t.Errorf("agent b: expected exit code 7 after 2 failures, found %v", err)
	}
	deadline := time.Now().Add(30 * time.Second)
	for { // alone again
		lines := file.lines()
		if last := lines[len(lines)-1]; strings.HasPrefix(last, "a 0/1 ") && last != "a 0/1 0" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("found %q", lines)
		}
		time.Sleep(20 * time.Millisecond) // the lines are of other processes
	}
	select {
	case err := <-a.ended:
		t.Errorf("agent a ended: %v", err)
	default:
	}
}

// F305: the next leader continues the generation: the command is not disturbed.
func TestFailoverDoesNotRestartTheCommand(t *testing.T) {
	store := etcdtest.Store(t)
	r := start(t, store, 2, 2)
	follow := trainer.NewFollow()
	follow.Set(r.Addr, 1)
	file := notes(filepath.Join(t.TempDir(), "notes"))
	script := fmt.Sprintf(`echo "start $RANK" >> %[1]s; until test -e %[1]s.end; do sleep 0.02; done`, file)
	a, b := work(t, follow, "a", script), work(t, follow, "b", script)
	file.await(t, "start 0", "start 1")
	follow.Set("", 0)
	if err := r.Stop(); err != nil {
		t.Fatal(err)
	}
	next := start(t, store, 2, 2)
	follow.Set(next.Addr, 2)
	if err := os.WriteFile(string(file)+".end", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, w := range []*running{a, b} {
		if err := w.wait(t); err != nil {
			t.Errorf("agent %s: %v", w.Client.Member.Id, err)
		}
	}
	if err := next.Wait(); err != nil {
		t.Errorf("master: %v", err)
	}
	if n := len(file.lines()); n != 2 {
		t.Errorf("expected 2 starts, found %q", file.lines())
	}
}

func TestClosedRingLetsTheCommandEnd(t *testing.T) {
	r := start(t, etcdtest.Store(t), 1, 1)
	file := notes(filepath.Join(t.TempDir(), "notes"))
	a := work(t, trainer.At(r.Addr), "a", fmt.Sprintf(`echo begins >> %[1]s; until test -e %[1]s.end; do sleep 0.02; done; echo saved >> %[1]s; exit 3`, file))
	file.await(t, "begins")
	if err := a.Client.Close(t.Context(), "enough"); err != nil {
		t.Fatal(err)
	}
	if err := r.Wait(); err != nil {
		t.Errorf("master: %v", err)
	}
	if err := os.WriteFile(string(file)+".end", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if e, ok := errors.AsType[*ExitError](a.wait(t)); !ok || e.Code != 3 {
		t.Errorf("expected exit code 3, found %v", a.wait(t))
	}
	file.await(t, "saved")
}

// F340: a member whose command was stopped because too few members are left has not failed: if the ring is closed then, the agent ends without an error.
func TestStoppedCommandOfAClosedRingIsNoFailure(t *testing.T) {
	r := start(t, etcdtest.Store(t), 2, 2)
	file := notes(filepath.Join(t.TempDir(), "notes"))
	script := func(id string) string {
		return fmt.Sprintf(`echo %s begins >> %s; while :; do sleep 0.02; done`, id, file)
	}
	a, b := work(t, trainer.At(r.Addr), "a", script("a")), work(t, trainer.At(r.Addr), "b", script("b"))
	file.await(t, "a begins", "b begins")
	b.cancel()
	_ = b.wait(t)
	for { // a waits: its command has ended
		u, changed := a.Client.Update()
		if u.GetState() == pb.RingState_RING_STATE_WAITING {
			break
		}
		select {
		case <-changed:
		case <-time.After(30 * time.Second):
			t.Fatalf("expected a member that waits, found %v", u)
		}
	}
	a.awaitLog(t, "waiting for the ring")
	if err := a.Client.Close(t.Context(), "enough"); err != nil {
		t.Fatal(err)
	}
	if err := a.wait(t); err != nil {
		t.Errorf("the ring was closed while its member waited: %v", err)
	}
	a.awaitLog(t, "ring closed, while no command ran")
}

// awaitLog waits for a line of the log.
func (r *running) awaitLog(t *testing.T, text string) {
	t.Helper()
	mastertest.Eventually(t, text, func() bool {
		return slices.ContainsFunc(r.logged.AllEntries(), func(e *logrus.Entry) bool { return e.Message == text })
	})
}

func TestStubbornCommandIsKilled(t *testing.T) {
	r := start(t, etcdtest.Store(t), 1, 1)
	file := notes(filepath.Join(t.TempDir(), "notes"))
	a := work(t, trainer.At(r.Addr), "a", fmt.Sprintf(`trap '' TERM; sh -c 'trap "" TERM; sleep 60' & echo begins >> %s; while :; do sleep 0.02; done`, file), func(a *Agent) { a.Grace = 100 * time.Millisecond })
	file.await(t, "begins")
	began := time.Now()
	a.cancel()
	_ = a.wait(t)
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("the end took %v", took)
	}
}

// The value of the user takes precedence.
func TestAgentSetsErrorHandlingOfNCCL(t *testing.T) {
	for given, want := range map[string]string{"": "1", "3": "3"} {
		t.Run("given "+given, func(t *testing.T) {
			t.Setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", given)
			if given == "" {
				if err := os.Unsetenv("TORCH_NCCL_ASYNC_ERROR_HANDLING"); err != nil {
					t.Fatal(err)
				}
			}
			r := start(t, etcdtest.Store(t), 1, 1)
			file := notes(filepath.Join(t.TempDir(), "notes"))
			a := work(t, trainer.At(r.Addr), "a", fmt.Sprintf(`echo "$TORCH_NCCL_ASYNC_ERROR_HANDLING" >> %s`, file))
			if err := a.wait(t); err != nil {
				t.Error(err)
			}
			file.await(t, want)
		})
	}
}
