package pserver_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"

	"trainmaster/pserver"
)

// childEnv holds the childConfig of a test binary that is to be a parameter
// server: a process of its own, which can be killed.
const childEnv = "PSERVER_TEST_CHILD"

type childConfig struct {
	Dir     string
	Index   int
	Sockets string // directory of its data socket
	Job     pserver.JobState
	DieAt   int // the step of writing checkpoints after which the child kills itself, 0: never
}

func childMain() {
	var c childConfig
	if err := json.Unmarshal([]byte(os.Getenv(childEnv)), &c); err != nil {
		panic(err)
	}
	b := newBook(c.Index + 1)
	b.job = c.Job
	s, err := pserver.New(pserver.Config{
		Registry: &childPlace{place: b.place(c.Index), in: bufio.NewScanner(os.Stdin)}, CheckpointDir: c.Dir, DataSocket: c.Sockets, Log: quiet(),
	})
	if err != nil {
		panic(err)
	}
	steps := 0
	s.OnStep(func(what string) {
		steps++
		fmt.Println("step", what)
		if steps == c.DieAt {
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	})
	fmt.Println("addr", s.Addr())
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := s.Run(ctx); err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
}

// childPlace asks the book of the parent process.
type childPlace struct {
	*place
	mu sync.Mutex
	in *bufio.Scanner
}

func (p *childPlace) ClaimPS(ctx context.Context, addr string, waiting func(string)) (pserver.Claim, error) {
	_, err := p.place.ClaimPS(ctx, addr, waiting)
	return p, err
}

func (p *childPlace) Current(context.Context) (job pserver.JobState, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Println("current")
	if !p.in.Scan() {
		return job, errors.New("the parent process is gone")
	}
	return job, json.Unmarshal(p.in.Bytes(), &job)
}

func (p *childPlace) AskSet(context.Context) error {
	fmt.Println("ask")
	return nil
}

// child is a parameter server in another process.
type child struct {
	cmd    *exec.Cmd
	gone   chan struct{} // closed when it has ended
	mu     sync.Mutex
	steps  []string // changes of the disk
	failed string
}

// startChild enters the child into the book, and out of it when it ends.
func startChild(t testing.TB, b *book, c childConfig) *child {
	t.Helper()
	c.Job = b.state()
	config, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	run := &child{cmd: exec.Command(os.Args[0]), gone: make(chan struct{})}
	run.cmd.Env = append(os.Environ(), childEnv+"="+string(config))
	run.cmd.Stderr = os.Stderr
	in, err := run.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := run.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := run.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if b.leader == nil {
		newSetTaker(t, b)
	}
	var asked sync.WaitGroup
	asking, end := context.WithCancel(context.Background())
	go func() {
		defer close(run.gone)
		defer asked.Wait()
		defer end()
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			kind, what, _ := strings.Cut(lines.Text(), " ")
			switch kind {
			case "addr":
				b.set(c.Index, what)
			case "step":
				run.mu.Lock()
				run.steps = append(run.steps, what)
				run.mu.Unlock()
			case "error":
				run.failed = what
			case "current":
				json.NewEncoder(in).Encode(b.state()) //nolint:errcheck,errchkjson // the child can be gone
			case "ask":
				asked.Go(func() { b.takeSet(asking) }) //nolint:errcheck // the child asks again
			}
		}
		run.cmd.Wait()
		b.set(c.Index, "")
	}()
	t.Cleanup(run.kill)
	return run
}

func (c *child) kill() {
	c.cmd.Process.Kill()
	<-c.gone
}

func (c *child) terminate() {
	c.cmd.Process.Signal(syscall.SIGTERM)
	<-c.gone
}

func (c *child) ended() bool {
	select {
	case <-c.gone:
		return true
	default:
		return false
	}
}

// count is how many steps it did.
func (c *child) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.steps)
}

// did counts how often a step was done.
func (c *child) did(what string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for _, s := range c.steps {
		if s == what {
			n++
		}
	}
	return n
}
