package drill

import (
	"bytes"
	"context"
	"errors"
	"io"
	"iter"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"text/tabwriter"
	"time"

	"go.uber.org/goleak"

	"trainmaster/etcdstore"
	"trainmaster/internal/tcpproxy"
	"trainmaster/taskqueue"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 30 * time.Second

// echo is a server that sends back what it gets.
func echo(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_, _ = io.Copy(conn, conn) // until it breaks
			}()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close() // ends the loop
		<-done
	})
	return l.Addr().String()
}

// proxied starts proxies before an echo for two processes, and returns a scene that controls them.
func proxied(t *testing.T) (scene *Scene, addrs map[string]string) {
	t.Helper()
	proxies, err := NewProxies("secret")
	if err != nil {
		t.Fatal(err)
	}
	target := echo(t)
	addrs = map[string]string{}
	for _, name := range []string{"a", "b"} {
		if addrs[name], err = proxies.Add(name, target); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- proxies.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return &Scene{Control: proxies.Control(), Secret: "secret"}, addrs
}

func dial(t *testing.T, addr string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() }) // the proxy may have been faster
	return conn
}

// says sends words and reads as many bytes back, within limit.
func says(t *testing.T, conn net.Conn, words string, limit time.Duration) error {
	t.Helper()
	if _, err := io.WriteString(conn, words); err != nil {
		t.Fatal(err)
	}
	return hears(t, conn, words, limit)
}

func hears(t *testing.T, conn net.Conn, words string, limit time.Duration) error {
	t.Helper()
	if err := conn.SetReadDeadline(time.Now().Add(limit)); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(words))
	if _, err := io.ReadFull(conn, got); err != nil {
		return err
	}
	if string(got) != words {
		t.Fatalf("received %q, expected %q", got, words)
	}
	return nil
}

// A cut way loses nothing that TCP would not repeat: no connection breaks, and all arrives in the end, in order. Another
// process's way stays open. New connections are cut as well.
func TestCut(t *testing.T) {
	scene, addrs := proxied(t)
	a, b := dial(t, addrs["a"]), dial(t, addrs["b"])
	for _, conn := range []net.Conn{a, b} {
		if err := says(t, conn, "before", patience); err != nil {
			t.Fatal(err)
		}
	}
	if err := scene.setProxy(t.Context(), "a", State{Cut: true}); err != nil {
		t.Fatal(err)
	}
	late := dial(t, addrs["a"])
	for name, conn := range map[string]net.Conn{"an open": a, "a new": late} {
		if err := says(t, conn, "during", 100*time.Millisecond); err == nil || !os.IsTimeout(err) {
			t.Errorf("%s connection over a cut way: %v, expected silence", name, err)
		}
	}
	if err := says(t, b, "during", patience); err != nil {
		t.Errorf("another process's way: %v", err)
	}
	if err := scene.setProxy(t.Context(), "a", State{}); err != nil {
		t.Fatal(err)
	}
	for _, conn := range []net.Conn{a, late} {
		if err := hears(t, conn, "during", patience); err != nil {
			t.Errorf("after the cut: %v", err)
		}
	}
}

// Bytes that a server sends without a request are held too.
func TestCutIsOfBothWays(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	p, err := tcpproxy.New(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	State{Cut: true}.apply(p)
	client := dial(t, p.Addr())
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	for _, conn := range []net.Conn{client, server} {
		if _, err := io.WriteString(conn, "hello"); err != nil {
			t.Fatal(err)
		}
	}
	for deadline := time.Now().Add(patience); p.HeldRequests() == 0 || p.HeldReplies() == 0; time.Sleep(time.Millisecond) { // interval between checks
		if time.Now().After(deadline) {
			t.Fatalf("%d bytes of the client are held, %d of the server", p.HeldRequests(), p.HeldReplies())
		}
	}
}

// A delay applies to both directions and to all proxies. If it is removed, delayed bytes are forwarded immediately.
func TestDelay(t *testing.T) {
	scene, addrs := proxied(t)
	conn := dial(t, addrs["b"])
	const delay = 150 * time.Millisecond
	if err := scene.setProxy(t.Context(), "", State{DelayMS: delay.Milliseconds()}); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := says(t, conn, "slowly", patience); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < 2*delay {
		t.Errorf("there and back in %v, expected %v each way", took, delay)
	}
	if err := scene.setProxy(t.Context(), "", State{DelayMS: time.Hour.Milliseconds()}); err != nil {
		t.Fatal(err)
	}
	if err := says(t, conn, "never", 50*time.Millisecond); !os.IsTimeout(err) {
		t.Errorf("an hour's delay: %v", err)
	}
	if err := scene.setProxy(t.Context(), "", State{}); err != nil {
		t.Fatal(err)
	}
	if err := hears(t, conn, "never", patience); err != nil {
		t.Errorf("after the delay: %v", err)
	}
}

func TestControlRefuses(t *testing.T) {
	scene, _ := proxied(t)
	stranger := &Scene{Control: scene.Control, Secret: "guessed"}
	if err := stranger.setProxy(t.Context(), "", State{Cut: true}); err == nil || !strings.Contains(err.Error(), "403") {
		t.Errorf("without the secret: %v", err)
	}
	if err := scene.setProxy(t.Context(), "c", State{}); err == nil || !strings.Contains(err.Error(), `"c"`) {
		t.Errorf("a proxy that there is not: %v", err)
	}
	for name, none := range map[string]*Scene{"no run": nil, "a run without proxies": {}} {
		if err := none.setProxy(t.Context(), "", State{}); err == nil || !strings.Contains(err.Error(), "--drillable") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The file of a run lists its processes. A process that reuses an id is not mistaken for the registered process.
func TestRegister(t *testing.T) {
	parent := t.TempDir()
	dir := filepath.Join(parent, "007")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	register, err := NewRegister(dir, Scene{Endpoint: "http://127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	if found, err := LatestRun(parent); err == nil {
		t.Errorf("a run without a process that lives: %s", found)
	}
	sleeper := exec.Command("sleep", "600")
	if err := sleeper.Start(); err != nil {
		t.Fatal(err)
	}
	for name, pid := range map[string]int{"me": os.Getpid(), "sleeper": sleeper.Process.Pid, "master": os.Getpid()} {
		if err := register.Started(name, pid); err != nil {
			t.Fatal(err)
		}
	}
	if err := register.Ended("master"); err != nil {
		t.Fatal(err)
	}
	found, err := LatestRun(parent)
	if err != nil || found != dir {
		t.Fatalf("found %q, %v, expected %s", found, err, dir)
	}
	scene, err := ReadScene(found)
	if err != nil || scene.Endpoint != "http://127.0.0.1:1" || len(scene.Processes) != 2 {
		t.Fatalf("found %+v, %v", scene, err)
	}
	p, err := scene.process("sleeper")
	if err != nil || p.PID != sleeper.Process.Pid {
		t.Fatalf("the sleeper is %+v, %v", p, err)
	}
	if err := signaller(p, syscall.SIGKILL)(t.Context()); err != nil {
		t.Fatal(err)
	}
	_ = sleeper.Wait() // it was killed
	if _, err := scene.process("sleeper"); err == nil || !strings.Contains(err.Error(), "me") {
		t.Errorf("ended process: %v, expected the names of running processes", err)
	}
	if err := signaller(p, syscall.SIGKILL)(t.Context()); err == nil {
		t.Error("a process that has ended was signalled")
	}
	if runtime.GOOS == "linux" { // elsewhere the kernel says nothing of it
		other := Process{Name: "me", PID: os.Getpid(), Started: 1}
		if err := signaller(other, syscall.SIGKILL)(t.Context()); err == nil {
			t.Error("a process with the same id was mistaken for the registered process")
		}
	}
	if err := register.Close(); err != nil {
		t.Fatal(err)
	}
	if found, err := LatestRun(parent); err == nil {
		t.Errorf("ended run: %s", found)
	}
}

func TestListener(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("needs Linux's /proc")
	}
	addr := echo(t)
	p, err := listener(addr)
	if err != nil || p.PID != os.Getpid() || !p.lives() {
		t.Errorf("who listens at %s: %+v, %v, expected this process", addr, p, err)
	}
	every, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer every.Close()
	_, port, err := net.SplitHostPort(every.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if p, err := listener("127.0.0.1:" + port); err != nil || p.PID != os.Getpid() {
		t.Errorf("who listens at every address: %+v, %v", p, err)
	}
	if err := every.Close(); err != nil {
		t.Fatal(err)
	}
	if p, err := listener("127.0.0.1:" + port); err == nil {
		t.Errorf("no listener, found %+v", p)
	}
	if err := sameProgram(1); err == nil {
		t.Error("the first process of the machine runs this program?")
	}
}

// The tracker reports the tasks of each trainer at the fault, the tasks that were returned and dispatched again, and when all are counted.
func TestTracker(t *testing.T) {
	l := newTracker()
	apply := func(events ...taskqueue.LedgerEvent) {
		for i := range events {
			l.apply(&events[i])
		}
		l.read++
	}
	at := func(kind taskqueue.EventKind, trainer taskqueue.Ordinal, position int, attempt taskqueue.Attempt) taskqueue.LedgerEvent {
		return taskqueue.LedgerEvent{Kind: kind, Pass: 1, Position: position, Attempt: attempt, Trainer: trainer}
	}
	apply(taskqueue.LedgerEvent{Kind: taskqueue.EventJoined, Trainer: 1, ID: "a"}, taskqueue.LedgerEvent{Kind: taskqueue.EventJoined, Trainer: 2, ID: "b"})
	apply(at(taskqueue.EventDispatched, 1, 0, 1), at(taskqueue.EventDispatched, 1, 1, 1), at(taskqueue.EventDispatched, 2, 2, 1))
	apply(at(taskqueue.EventFailed, 1, 0, 1), at(taskqueue.EventDispatched, 1, 0, 2), at(taskqueue.EventDispatched, 2, 3, 1), at(taskqueue.EventFinished, 2, 3, 1))
	l.mark("b")
	if l.pending != 3 || l.holds("a") != 2 || l.holds("b") != 1 || len(l.resent) != 0 {
		t.Fatalf("at the fault: %d pending, a holds %d, b %d, re-sent %v", l.pending, l.holds("a"), l.holds("b"), l.resent)
	}
	apply(at(taskqueue.EventFinished, 1, 0, 2), at(taskqueue.EventFinished, 1, 1, 1))
	if l.allCounted() {
		t.Error("settled before the session of the killed trainer ended, with an open task")
	}
	apply(taskqueue.LedgerEvent{Kind: taskqueue.EventLost, Trainer: 2}, at(taskqueue.EventReturned, 2, 2, 1))
	if l.allCounted() {
		t.Error("settled with a task that came back")
	}
	apply(at(taskqueue.EventDispatched, 1, 2, 2))
	if l.allCounted() {
		t.Error("settled with a task that is out again")
	}
	apply(at(taskqueue.EventFinished, 1, 2, 2))
	want := Resent{Pass: 1, Position: 2, Attempt: 2, From: "b", To: "a", Why: "returned"}
	if !l.allCounted() || len(l.resent) != 1 || l.resent[0] != want {
		t.Errorf("settled is %v, re-sent %+v, expected %+v", l.allCounted(), l.resent, want)
	}
}

// If the state says that a pass has ended, missing ledger entries do not delay a drill: the verification finds them.
func TestTrackerOfDamagedLedger(t *testing.T) {
	l := newTracker()
	none := func(context.Context, uint64) iter.Seq2[Entry, error] { return func(func(Entry, error) bool) {} }
	l.apply(&taskqueue.LedgerEvent{Kind: taskqueue.EventDispatched, Pass: 1, Position: 3, Attempt: 1, Trainer: 1})
	l.apply(&taskqueue.LedgerEvent{Kind: taskqueue.EventDispatched, Pass: 2, Position: 4, Attempt: 1, Trainer: 1})
	l.mark("")
	for _, c := range []struct {
		open    []taskqueue.OpenPass
		pending int
	}{
		{[]taskqueue.OpenPass{{Pass: 1}, {Pass: 2}}, 2},
		{[]taskqueue.OpenPass{{Pass: 2}}, 1},
		{[]taskqueue.OpenPass{{Pass: 3}}, 0},
	} {
		if err := l.follow(t.Context(), none, &taskqueue.Snapshot{Commit: l.read + 1, Sets: []taskqueue.SetSnapshot{{Open: c.open}}}); err != nil {
			t.Fatal(err)
		}
		if len(l.watched) != c.pending || l.allCounted() != (c.pending == 0) {
			t.Errorf("with %v open, it waits for %v and settled is %v, expected %d tasks", c.open, l.watched, l.allCounted(), c.pending)
		}
	}
}

func TestReport(t *testing.T) {
	r := &Report{
		Drill: KillLeader, Victim: Victim{"master", 12, "127.0.0.1:1", 3}, TookOver: &Leader{"master-1", "127.0.0.1:2", 5, 0.25},
		StoodStill: 0.3, Pending: 2, Resent: []Resent{{Pass: 1, Position: 2, Attempt: 2, From: "a", To: "b", Why: "timed out"}},
	}
	var text bytes.Buffer
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	r.Table(w)
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	for _, words := range []string{"process 12", "master-1 at 127.0.0.1:2 in term 5, after 250ms", "timed out by a, given to b", "lost           nothing"} {
		if !strings.Contains(text.String(), words) {
			t.Errorf("expected %q in:\n%s", words, text.String())
		}
	}
	for _, bad := range []Report{{Lost: 1}, {CountedTwice: 1}, {Problems: []string{"the ledger and the state disagree"}}} {
		if bad.OK() {
			t.Errorf("%+v is OK", bad)
		}
	}
	if !r.OK() {
		t.Error("a report without a loss is not OK")
	}
}

// The next leader commits before it announces its address, and the address of the former leader can remain until then.
func TestSuccessorIsNamedOnceItAnnouncesItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &Drill{term: 3}
		announced := []etcdstore.Addr{{Addr: "127.0.0.1:1", Term: 3}, {}, {Addr: "127.0.0.1:2", Term: 9}}
		read := func(context.Context) (etcdstore.Addr, error) {
			next := announced[0]
			announced = announced[min(1, len(announced)-1):]
			return next, nil
		}
		if found, err := d.successor(t.Context(), read); err != nil || found.Addr != "127.0.0.1:2" {
			t.Errorf("found %+v, %v, want the leader of term 9", found, err)
		}
		announced = []etcdstore.Addr{{}}
		bounded, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := d.successor(bounded, read); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("without a leader: %v, expected the error of the deadline", err)
		}
	})
}
