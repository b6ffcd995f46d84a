package trainer_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"trainmaster/etcdstore"
	"trainmaster/etcdstore/etcdtest"
	"trainmaster/master"
	"trainmaster/master/mastertest"
	"trainmaster/master/pscontrol"
	"trainmaster/recordio"
	"trainmaster/taskqueue"
	"trainmaster/trainer"
)

func TestMain(m *testing.M) { etcdtest.Main(m) }

// files writes n RecordIO files of ten chunks with ten records each.
func files(t *testing.T, n int) (names []string) {
	t.Helper()
	dir := t.TempDir()
	for i := range n {
		name := filepath.Join(dir, fmt.Sprintf("part-%03d", i))
		file, err := os.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		w := recordio.NewWriter(file, recordio.WriterOptions{RecordsPerChunk: 10})
		for r := range 100 {
			if err := w.Write(fmt.Appendf(nil, "%d/%d", i, r)); err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(w.Close(), file.Close()); err != nil {
			t.Fatal(err)
		}
		names = append(names, name)
	}
	return names
}

// protocol is the protocol of the clients of join; "": the default.
var protocol trainer.Protocol

// overBoth runs a test over each protocol.
func overBoth(t *testing.T, run func(t *testing.T)) {
	t.Helper()
	for _, p := range trainer.Protocols {
		t.Run(string(p), func(t *testing.T) {
			protocol = p
			t.Cleanup(func() { protocol = "" })
			run(t)
		})
	}
}

func join(t *testing.T, id string, locate trainer.Locator) *trainer.Client {
	t.Helper()
	return joinAs(t, trainer.Config{ID: id, Locate: locate})
}

// joinShuffled joins as a trainer that shuffles the records of a task.
func joinShuffled(t *testing.T, id string, locate trainer.Locator) *trainer.Client {
	t.Helper()
	return joinAs(t, trainer.Config{ID: id, Locate: locate, ShuffleRecords: 7})
}

func joinAs(t *testing.T, config trainer.Config) *trainer.Client {
	t.Helper()
	logger, _ := logtest.NewNullLogger()
	config.Heartbeat, config.Log, config.Protocol = 50*time.Millisecond, logrus.NewEntry(logger), protocol
	c, err := trainer.Join(within(t), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// within returns a context that bounds the time of a test.
func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func next(t *testing.T, c *trainer.Client, finished *taskqueue.Task) *taskqueue.Task {
	t.Helper()
	task, err := c.Next(within(t), finished)
	if err != nil {
		t.Fatal(err)
	}
	return task
}

// tally counts how often each record was trained in each pass.
type tally struct {
	mu   sync.Mutex
	seen map[string]int
}

func (l *tally) add(pass taskqueue.Pass, record []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.seen == nil {
		l.seen = map[string]int{}
	}
	l.seen[fmt.Sprintf("%d %s", pass, record)]++
}

// train works until the job ends.
func train(ctx context.Context, c *trainer.Client, l *tally) error {
	var done *taskqueue.Task
	for {
		task, err := c.Next(ctx, done)
		if errors.Is(err, io.EOF) {
			return c.Close()
		}
		if err != nil {
			return err
		}
		for record, err := range c.Records(task) {
			if err != nil {
				return err
			}
			l.add(task.Token.Pass, record)
		}
		done = task
	}
}

// wantOnce checks that every task counts once in the ledger, and every record once in the tally, in each pass.
func wantOnce(t *testing.T, store *etcdstore.Store, l *tally, passes, tasks int) {
	t.Helper()
	reports := mastertest.Verify(t, store)
	if len(reports) != passes {
		t.Errorf("%d passes, want %d", len(reports), passes)
	}
	for _, p := range reports {
		if p.CountedOnce != tasks || p.Redelivered != 0 {
			t.Errorf("pass %d: %d of %d tasks counted, %d redelivered", p.Pass, p.CountedOnce, tasks, p.Redelivered)
		}
	}
	if len(l.seen) != passes*tasks*10 {
		t.Errorf("tally: found %d records, expected %d", len(l.seen), passes*tasks*10)
	}
	for record, n := range l.seen {
		if n != 1 {
			t.Errorf("pass and record %s: trained %d times", record, n)
		}
	}
}

// follow returns a locator that watches the announcements of a job, as the command does.
func follow(t *testing.T, store *etcdstore.Store) *trainer.Follow {
	f := trainer.NewFollow()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		for addr := range store.WatchMasterAddr(ctx) {
			f.Set(addr.Addr, addr.Term)
		}
	})
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	return f
}

// A trainer that received the final end of leadership continues its session if a leader appears later.
func TestLeaderAfterTheEnd(t *testing.T) {
	r := mastertest.Start(t, etcdtest.Store(t), master.Config{})
	leader := trainer.NewFollow()
	leader.Set(r.Addr, 1)
	beats := make(chan struct{})
	c, err := trainer.Join(within(t), trainer.Config{ID: "a", Locate: leader, Heartbeat: 10 * time.Millisecond, Answered: func(a trainer.Answer) {
		if a.Call == "Heartbeat" {
			select {
			case beats <- struct{}{}:
			case <-t.Context().Done():
			}
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	<-beats
	leader.Set("", 0)
	leader.End(io.EOF)
	if _, err := c.Next(within(t), nil); !errors.Is(err, io.EOF) {
		t.Errorf("without a leader: got error %v", err)
	}
	for range 3 { // requests under way and their effects have ended
		select {
		case <-beats:
		case <-time.After(50 * time.Millisecond):
		}
	}
	leader.Set(r.Addr, 2)
	select {
	case <-beats:
	case <-within(t).Done():
		t.Error("expected a heartbeat to the next leader")
	}
}

func TestClientsRunAJob(t *testing.T) {
	names := files(t, 3)
	store := etcdtest.Store(t)
	r := mastertest.Start(t, store, master.Config{Shuffle: true, Seed: 5, ChunksPerTask: 1, Queue: taskqueue.Options{Passes: 2}})
	var l tally
	var wg sync.WaitGroup
	for i := range 3 {
		c := join(t, fmt.Sprint("t", i), trainer.At(r.Addr))
		wg.Go(func() {
			if err := errors.Join(c.ReportDataset(within(t), names), train(within(t), c, &l)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if err := r.Wait(); err != nil {
		t.Error(err)
	}
	wantOnce(t, store, &l, 2, 30)
}

// Masters are stopped gracefully, or deposed by a takeover, while trainers train. No call fails, and every task is trained
// and counted once.
func TestTrainersSurviveMasterChanges(t *testing.T) { overBoth(t, testTrainersSurviveMasterChanges) }

func testTrainersSurviveMasterChanges(t *testing.T) {
	names := files(t, 6)
	job := etcdtest.NewJob(t)
	config := master.Config{Shuffle: true, ChunksPerTask: 1, Queue: taskqueue.Options{Passes: 4}}
	start := func() *mastertest.Running {
		return mastertest.Start(t, etcdtest.Open(t, etcdtest.Endpoint(t), job), config)
	}
	store := etcdtest.Open(t, etcdtest.Endpoint(t), job)
	r := start()
	var l tally
	var wg sync.WaitGroup
	for i := range 4 {
		c := join(t, fmt.Sprint("t", i), follow(t, store))
		wg.Go(func() {
			if err := errors.Join(c.ReportDataset(within(t), names), train(within(t), c, &l)); err != nil {
				t.Error(err)
			}
		})
	}
	for range 3 {
		mastertest.Eventually(t, "a finished task", func() bool {
			v, err := r.Overview(t.Context())
			return err != nil || len(v.Sets) == 1 && v.Sets[0].Done > 5 || v.Status != taskqueue.Running
		})
		if err := r.Stop(); err != nil {
			t.Fatal(err)
		}
		r = start()
	}
	wg.Wait()
	if err := r.Wait(); err != nil {
		t.Error(err)
	}
	wantOnce(t, store, &l, 4, 60)
}

// Connections break during requests: answers are lost and requests are repeated. A repeated request receives the same
// answer. No task is redelivered, and nothing counts twice.
func TestBrokenConnections(t *testing.T) { overBoth(t, testBrokenConnections) }

func testBrokenConnections(t *testing.T) {
	names := files(t, 6)
	store := etcdtest.Store(t)
	r := mastertest.Start(t, store, master.Config{Shuffle: true, ChunksPerTask: 1, Queue: taskqueue.Options{Passes: 3}})
	proxy := etcdtest.StartProxy(t, "http://"+r.Addr)
	locate := trainer.At(proxy.Addr())
	var l tally
	var wg sync.WaitGroup
	for i := range 3 {
		c := join(t, fmt.Sprint("t", i), locate)
		wg.Go(func() {
			if err := errors.Join(c.ReportDataset(within(t), names), train(within(t), c, &l)); err != nil {
				t.Error(err)
			}
		})
	}
	trained := make(chan struct{})
	go func() {
		defer close(trained)
		wg.Wait()
	}()
	cuts, over := 0, false
	done := func() bool {
		select {
		case <-trained:
			over = true
		default:
		}
		return over
	}
	for ; !done(); cuts++ {
		var before uint64
		mastertest.Eventually(t, "progress after the cut", func() bool {
			v, err := r.Overview(t.Context())
			if before == 0 {
				before = v.Commit
			}
			return err != nil || v.Commit > before+2 || done()
		})
		proxy.HoldReplies(true)
		mastertest.Eventually(t, "a held answer", func() bool { return proxy.HeldReplies() > 0 || done() })
		proxy.Cut()
		proxy.HoldReplies(false)
	}
	if err := r.Wait(); err != nil {
		t.Error(err)
	}
	if cuts < 5 {
		t.Errorf("expected more cuts, found %d", cuts)
	}
	wantOnce(t, store, &l, 3, 60)
}

// A paused master keeps its connections open. Its trainers leave it when another master is announced, or continue
// when it resumes.
func TestSilentMaster(t *testing.T) { overBoth(t, testSilentMaster) }

func testSilentMaster(t *testing.T) {
	job := etcdtest.NewJob(t)
	first := mastertest.Start(t, etcdtest.Open(t, etcdtest.Endpoint(t), job), master.Config{})
	proxy := etcdtest.StartProxy(t, "http://"+first.Addr)
	locate := trainer.NewFollow()
	locate.Set(proxy.Addr(), 1)
	c := join(t, "a", locate)
	c.SetPatience(200 * time.Millisecond)
	waiting := make(chan *taskqueue.Task, 1)
	ctx := within(t)
	ask := func() {
		go func() {
			task, err := c.Next(ctx, nil)
			if err != nil {
				t.Error(err)
			}
			waiting <- task
		}()
	}
	ask()
	mastertest.Eventually(t, "a trainer that waits for a dataset", func() bool {
		v, err := first.Overview(t.Context())
		return err == nil && len(v.Trainers) == 1
	})
	proxy.HoldRequests(true)
	proxy.HoldReplies(true)
	first.Register(10)
	proxy.Cut() // the client reconnects to a silent master
	mastertest.Eventually(t, "a held request", func() bool { return proxy.HeldRequests() > 0 })
	proxy.HoldRequests(false)
	proxy.HoldReplies(false)
	task := <-waiting
	if task == nil || task.Token.Position != 0 {
		t.Fatalf("got %+v", task)
	}

	proxy.HoldRequests(true)
	proxy.HoldReplies(true)
	if err := first.Stop(); err != nil {
		t.Fatal(err)
	}
	second := mastertest.Start(t, etcdtest.Open(t, etcdtest.Endpoint(t), job), master.Config{})
	began := time.Now()
	locate.Set(second.Addr, 2)
	if task, err := c.Next(ctx, task); err != nil || task == nil {
		t.Error(task, err)
	}
	mastertest.Eventually(t, "the finish at the next master", func() bool {
		v, err := second.Overview(t.Context())
		return err == nil && v.Sets[0].Done == 1
	})
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("expected the finish within 10 s, found %v", took)
	}
}

// A trainer that was silent for longer than its session receives an error and joins again. Its finish in that time
// counts if no other trainer finished the task.
func TestSessionLost(t *testing.T) { overBoth(t, testSessionLost) }

func testSessionLost(t *testing.T) {
	r := mastertest.Start(t, etcdtest.Store(t), master.Config{Queue: taskqueue.Options{SessionTTL: 2 * time.Second}})
	r.Register(1)
	proxy := etcdtest.StartProxy(t, "http://"+r.Addr)
	locate := trainer.At(proxy.Addr())
	c := join(t, "a", locate)
	first := next(t, c, nil)
	proxy.HoldRequests(true)
	mastertest.Eventually(t, "the end of the session", func() bool {
		v, err := r.Overview(t.Context())
		return err == nil && len(v.Trainers) == 0
	})
	proxy.HoldRequests(false)
	if _, err := c.Next(within(t), first); !errors.Is(err, trainer.ErrSessionLost) {
		t.Fatalf("got error %v", err)
	}
	if _, err := c.RequestSaveModel(within(t)); !errors.Is(err, trainer.ErrSessionLost) {
		t.Errorf("election of the saver: got error %v", err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	again := join(t, "a", locate)
	if again.Incarnation() <= c.Incarnation() {
		t.Errorf("incarnation %d after %d", again.Incarnation(), c.Incarnation())
	}
	if task := next(t, again, nil); task.Token.Pass != 2 {
		t.Errorf("finish of a lost session: expected it to count, got token %v", task.Token)
	}
}

// While a task is trained, the client prefetches the next task, also without a master.
func TestPrefetch(t *testing.T) { overBoth(t, testPrefetch) }

func testPrefetch(t *testing.T) {
	r := mastertest.Start(t, etcdtest.Store(t), master.Config{})
	r.Register(3)
	proxy := etcdtest.StartProxy(t, "http://"+r.Addr)
	c := join(t, "a", trainer.At(proxy.Addr()))
	first := next(t, c, nil)
	var tasks []taskqueue.PendingTask
	mastertest.Eventually(t, "a running and a prefetched task", func() (ok bool) {
		var err error
		tasks, err = r.PendingTasks(t.Context())
		return err == nil && len(tasks) == 2
	})
	if tasks[0].Holders[0].Prefetched || !tasks[1].Holders[0].Prefetched {
		t.Errorf("pending: expected a clock for the first task only, found %+v", tasks)
	}
	c.Progressed(10, 0.5)
	mastertest.Eventually(t, "a stored progress", func() bool {
		v, err := r.Overview(t.Context())
		return err == nil && v.Trainers[0].Progress == taskqueue.Progress{Records: 10, Loss: 0.5}
	})
	proxy.HoldReplies(true)
	if second := next(t, c, first); second.Token.Position != 1 {
		t.Errorf("got %v", second.Token)
	}
	proxy.HoldReplies(false)
}

// F28: a task that fails is dispatched again, and set aside in the end with its last holder and error.
func TestFail(t *testing.T) { overBoth(t, testFail) }

func testFail(t *testing.T) {
	r := mastertest.Start(t, etcdtest.Store(t), master.Config{})
	r.Register(2)
	c := join(t, "a", trainer.At(r.Addr))
	failures := 0
	task := next(t, c, nil)
	for range 12 {
		if task.Token.Position != 0 {
			task = next(t, c, task)
			continue
		}
		failures++
		if err := c.Fail(within(t), task, errors.New("the third record is no image")); err != nil {
			t.Fatal(err)
		}
		if failures == 4 {
			break
		}
		task = next(t, c, nil)
	}
	var aside []master.SetAsideTask
	mastertest.Eventually(t, "a set-aside task", func() bool {
		tasks, err := r.Tasks(t.Context())
		aside = tasks.SetAside
		return err == nil && len(aside) == 1
	})
	detail, found, err := r.AsideDetail(t.Context(), aside[0])
	if err != nil || !found || detail.Holder != "a" || detail.Error != "the third record is no image" || detail.Failures != 4 {
		t.Errorf("got %+v, %v, %v", detail, found, err)
	}
	if task := next(t, c, nil); task.Token.Position != 1 { // the pass continues
		t.Errorf("got %v", task.Token)
	}
}

// Close reports finished tasks, returns all others without a failure, and ends the session.
func TestCloseReturnsTasksAndEndsSession(t *testing.T) {
	overBoth(t, testCloseReturnsTasksAndEndsSession)
}

func testCloseReturnsTasksAndEndsSession(t *testing.T) {
	r := mastertest.Start(t, etcdtest.Store(t), master.Config{})
	r.Register(5)
	c := join(t, "a", trainer.At(r.Addr))
	first := next(t, c, nil)
	next(t, c, first) // this request is under way when the client closes
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	v, err := r.Overview(t.Context())
	if err != nil || len(v.Trainers) != 0 || v.Sets[0].Done != 1 || v.Sets[0].Pending != 0 {
		t.Errorf("got %+v, %v; expected one done task, no pending task, no trainer", v, err)
	}
	tasks, err := r.PendingTasks(t.Context())
	if err != nil || slices.ContainsFunc(tasks, func(p taskqueue.PendingTask) bool { return p.Failures+p.Losses > 0 }) {
		t.Errorf("expected no failure, found %+v, %v", tasks, err)
	}

	gone := join(t, "b", trainer.At(r.Addr))
	task := next(t, gone, nil)
	if err := r.Stop(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	gone.Next(canceled(t, 10*time.Millisecond), task) // may return a prefetched task
	if err := gone.Close(); err == nil {
		t.Error("Close without a master: expected an error")
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("Close without a master: took %v", took)
	}
}

func canceled(t *testing.T, after time.Duration) context.Context {
	ctx, cancel := context.WithTimeoutCause(t.Context(), after, errors.New("enough"))
	t.Cleanup(cancel)
	return ctx
}

// The end of a context is returned with its cause. The next call continues the canceled call.
func TestCanceledCalls(t *testing.T) {
	r := mastertest.Start(t, etcdtest.Store(t), master.Config{})
	c := join(t, "a", trainer.At(r.Addr))
	if _, err := c.Next(canceled(t, 50*time.Millisecond), nil); err == nil || err.Error() != "enough" {
		t.Errorf("got %v", err)
	}
	r.Register(2)
	task := next(t, c, nil)
	if _, err := c.Next(canceled(t, -1), task); err != nil && err.Error() != "enough" {
		t.Error(err)
	}
	if task := next(t, c, nil); task.Token.Pass*100+taskqueue.Pass(task.Token.Position) > 201 {
		t.Errorf("got %v", task.Token)
	}
	nowhere := trainer.NewFollow()
	if _, err := trainer.Join(canceled(t, 20*time.Millisecond), trainer.Config{ID: "b", Locate: nowhere}); err == nil || !strings.Contains(err.Error(), `join as "b": enough`) {
		t.Errorf("without a known master: got error %v", err)
	}
	if _, err := trainer.Join(t.Context(), trainer.Config{ID: "b", Locate: nowhere, Protocol: "pigeon"}); err == nil || !strings.Contains(err.Error(), `found "pigeon"`) {
		t.Errorf("unknown protocol: %v", err)
	}
	if _, err := trainer.Join(t.Context(), trainer.Config{ID: "b"}); err == nil || !strings.Contains(err.Error(), "Locate") {
		t.Errorf("without a locator: got error %v", err)
	}
	if _, err := trainer.Join(t.Context(), trainer.Config{ID: "a b", Locate: trainer.At(r.Addr)}); err == nil || !strings.Contains(err.Error(), "trainer id") {
		t.Errorf("invalid id: got error %v", err)
	}
}

// F41: a reported file is replaced by a file of the same size, time and chunks. Only the checksums of its chunks
// differ.
func TestReplacedFileWithTheSameSizeAndTime(t *testing.T) {
	overBoth(t, testReplacedFileWithTheSameSizeAndTime)
}

func testReplacedFileWithTheSameSizeAndTime(t *testing.T) {
	names := files(t, 1)
	r := mastertest.Start(t, etcdtest.Store(t), master.Config{ChunksPerTask: 5})
	c := join(t, "a", trainer.At(r.Addr))
	if err := c.ReportDataset(within(t), names); err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(names[0])
	if err != nil {
		t.Fatal(err)
	}
	reported, err := recordio.Open(names[0])
	if err != nil {
		t.Fatal(err)
	}
	defer reported.Close()
	var records [][]byte
	for record, err := range reported.Records() {
		if err != nil {
			t.Fatal(err)
		}
		records = append(records, bytes.ReplaceAll(record, []byte("/"), []byte("-")))
	}
	others := names[0] + ".new"
	file, err := os.Create(others)
	if err != nil {
		t.Fatal(err)
	}
	w := recordio.NewWriter(file, recordio.WriterOptions{RecordsPerChunk: 10})
	for _, record := range records {
		if err := w.Write(record); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), file.Close(), os.Chtimes(others, before.ModTime(), before.ModTime()), os.Rename(others, names[0])); err != nil {
		t.Fatal(err)
	}
	if after, err := os.Stat(names[0]); err != nil || after.Size() != before.Size() {
		t.Fatalf("replacement: expected the same size, found %v, %v", after, err)
	}
	var failed error
	for record, err := range c.Records(next(t, c, nil)) {
		if err == nil {
			t.Fatalf("expected no record of the replacement, found %q", record)
		}
		failed = err
	}
	if !errors.Is(failed, recordio.ErrChanged) {
		t.Errorf("read: got error %v", failed)
	}
}

// F41: a file that was replaced since it was indexed is an error with its name.
func TestReplacedFile(t *testing.T) {
	names := files(t, 2)
	r := mastertest.Start(t, etcdtest.Store(t), master.Config{ChunksPerTask: 5})
	c := join(t, "a", trainer.At(r.Addr))
	if err := c.ReportDataset(within(t), names); err != nil {
		t.Fatal(err)
	}
	task := next(t, c, nil)
	n := 0
	for record, err := range c.Records(task) {
		if err != nil {
			t.Fatal(err)
		}
		if want := fmt.Sprintf("0/%d", n); string(record) != want {
			t.Fatalf("record %d is %q, want %q", n, record, want)
		}
		n++
	}
	if n != 50 {
		t.Errorf("%d records, want 50", n)
	}
	content, err := os.ReadFile(names[0])
	if err != nil {
		t.Fatal(err)
	}
	temporary := names[0] + ".new"
	if err := errors.Join(
		os.WriteFile(temporary, content, 0o600),
		os.Chtimes(temporary, time.Time{}, time.Now().Add(time.Second)), // the clock of a file system can have ticks of 10 ms
		os.Rename(temporary, names[0]),
	); err != nil { // the same bytes with another time
		t.Fatal(err)
	}
	task = next(t, c, task)
	read := 0
	var failed error
	for _, err := range c.Records(task) {
		if err != nil {
			failed = err
			continue
		}
		read++
	}
	if failed == nil || read != 0 || !strings.Contains(failed.Error(), names[0]) || !strings.Contains(failed.Error(), fmt.Sprint("task ", task.Index)) {
		t.Fatalf("%d records, and %v", read, failed)
	}
	if err := c.Fail(within(t), task, failed); err != nil {
		t.Error(err)
	}
}

// F31, and a report that exceeds the size of a message.
// Bytes that are not text cannot be in a message over gRPC: a reason is made text, and an id is refused instead of repeated without end.
func TestTextThatIsNotUTF8(t *testing.T) {
	overBoth(t, func(t *testing.T) {
		r := mastertest.Start(t, etcdtest.Store(t), master.Config{Queue: taskqueue.Options{Passes: 1, MaxFailures: 10}})
		r.Register(1)
		c := join(t, "a", trainer.At(r.Addr))
		for _, reason := range []string{"record \xff\xfe", strings.Repeat("x", 1023) + "é"} { // the second one is cut inside its last letter
			if err := c.Fail(within(t), next(t, c, nil), errors.New(reason)); err != nil {
				t.Fatal(err)
			}
		}
		next(t, c, nil)
		logger, _ := logtest.NewNullLogger()
		if _, err := trainer.Join(within(t), trainer.Config{ID: "caf\xe9", Locate: trainer.At(r.Addr), Log: logrus.NewEntry(logger), Protocol: protocol}); err == nil || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("id that is not UTF-8: found %v, expected a refusal", err)
		}
	})
}

func TestReports(t *testing.T) { overBoth(t, testReports) }

func testReports(t *testing.T) {
	names := files(t, 2)
	r := mastertest.Start(t, etcdtest.Store(t), master.Config{})
	c := join(t, "a", trainer.At(r.Addr))
	if err := c.ReportDataset(within(t), []string{names[1], names[0]}); err != nil {
		t.Fatal(err)
	}
	if err := c.ReportDataset(within(t), names); err != nil {
		t.Error(err)
	}
	if err := c.ReportDataset(within(t), names[:1]); err == nil || !strings.Contains(err.Error(), "part-001") {
		t.Errorf("other dataset: got error %v", err)
	}
	if err := c.ReportDataset(within(t), []string{strings.Repeat("x", 5<<20)}); err == nil || !strings.Contains(err.Error(), "name them by a glob") {
		t.Errorf("name of 5 MB: got error %v", err)
	}
}

// The end of the job is io.EOF, for any number of calls. The end of a failed job is ErrJobFailed. One trainer is
// elected to save the model.
func TestNextReturnsEndOfJob(t *testing.T) { overBoth(t, testNextReturnsEndOfJob) }

func testNextReturnsEndOfJob(t *testing.T) {
	r := mastertest.Start(t, etcdtest.Store(t), master.Config{Queue: taskqueue.Options{Passes: 1}})
	r.Register(1)
	a, b := join(t, "a", trainer.At(r.Addr)), join(t, "b", trainer.At(r.Addr))
	task := next(t, a, nil)
	for _, finished := range []*taskqueue.Task{task, nil, nil} {
		if _, err := a.Next(within(t), finished); !errors.Is(err, io.EOF) {
			t.Errorf("got %v, want EOF", err)
		}
	}
	if _, err := b.Next(within(t), nil); !errors.Is(err, io.EOF) {
		t.Errorf("got %v, want EOF", err)
	}
	if first, err := a.RequestSaveModel(within(t)); err != nil || !first {
		t.Errorf("first trainer that asks: %v, %v", first, err)
	}
	if second, err := b.RequestSaveModel(within(t)); err != nil || second {
		t.Errorf("second trainer that asks: %v, %v", second, err)
	}
	if a.Sync() {
		t.Error("expected a job without synchronous steps")
	}
	if _, _, err := a.Staged(within(t), 0, 0, 1); err == nil || !strings.Contains(err.Error(), master.ErrNotSync.Error()) {
		t.Errorf("stage in a job without steps: got error %v", err)
	}

	failing := mastertest.Start(t, etcdtest.Store(t), master.Config{Queue: taskqueue.Options{Passes: 1}})
	failing.Register(1)
	c := join(t, "c", trainer.At(failing.Addr))
	for range 4 {
		if err := c.Fail(within(t), next(t, c, nil), errors.New("no")); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Next(within(t), nil); !errors.Is(err, trainer.ErrJobFailed) {
		t.Errorf("got %v", err)
	}
}

// A trainer that has not asked for a task, because it waits for a parameter server, receives the failure of the job.
func TestUntilFailedEndsBeforeTheFirstTask(t *testing.T) {
	overBoth(t, testUntilFailedEndsBeforeTheFirstTask)
}

func testUntilFailedEndsBeforeTheFirstTask(t *testing.T) {
	r := mastertest.Start(t, etcdtest.Store(t), master.Config{Queue: taskqueue.Options{Passes: 1}})
	r.Register(1)
	waiting, release := join(t, "waiting", trainer.At(r.Addr)).UntilFailed(within(t))
	defer release()
	failing := join(t, "failing", trainer.At(r.Addr))
	for range 4 {
		if err := failing.Fail(within(t), next(t, failing, nil), errors.New("no")); err != nil {
			t.Fatal(err)
		}
	}
	<-waiting.Done()
	if err := context.Cause(waiting); !errors.Is(err, trainer.ErrJobFailed) || !strings.Contains(err.Error(), "set aside") {
		t.Errorf("got error %v, want %v with the reason", err, trainer.ErrJobFailed)
	}
}

// steps records the steps that the master sends to the parameter servers.
type steps struct {
	pscontrol.None
	heard chan taskqueue.Step
}

func newSteps() steps { return steps{heard: make(chan taskqueue.Step, 100)} }

func (steps) SetAt([]byte) (pscontrol.SetAt, error) {
	return pscontrol.SetAt{}, pscontrol.ErrNothingToCut
}

func (s steps) CommitStep(_ context.Context, step taskqueue.Step) error {
	select {
	case s.heard <- step:
	default: // a repeated step
	}
	return nil
}

// A staged gradient waits for its step while connections break.
func TestStaged(t *testing.T) { overBoth(t, testStaged) }

func testStaged(t *testing.T) {
	servers := newSteps()
	r := mastertest.StandBy(t, etcdtest.Store(t), master.Config{Sync: true, Queue: taskqueue.Options{ExplicitCommit: true, Cuts: true}}, servers)
	r.AwaitLeading()
	r.Register(10)
	proxy := etcdtest.StartProxy(t, "http://"+r.Addr)
	locate := trainer.At(proxy.Addr())
	a, b := join(t, "a", locate), join(t, "b", locate)
	next(t, a, nil)
	next(t, b, nil)
	staged := make(chan error, 1)
	go func() {
		committed, included, err := a.Staged(within(t), 0, 0, 7)
		if err == nil && (committed != 1 || !included) {
			err = fmt.Errorf("committed %d, included %v", committed, included)
		}
		staged <- err
	}()
	for range 5 {
		time.Sleep(20 * time.Millisecond) // for cuts at different times of the request
		proxy.Cut()
	}
	select {
	case err := <-staged:
		t.Fatalf("expected no step without the second trainer, got %v", err)
	default:
	}
	if committed, included, err := b.Staged(within(t), 0, 0, 3); err != nil || committed != 1 || !included {
		t.Errorf("got %d, %v, %v", committed, included, err)
	}
	if err := <-staged; err != nil {
		t.Error(err)
	}
	want := []taskqueue.Contributor{{Ordinal: a.Ordinal(), Incarnation: a.Incarnation(), Records: 7}, {Ordinal: b.Ordinal(), Incarnation: b.Incarnation(), Records: 3}}
	if step := <-servers.heard; step.Version != 1 || !slices.Equal(step.Contributors, want) {
		t.Errorf("step of the shards: got %+v", step)
	}
}

// cutSteps implements the parameter servers of a job with cuts.
type cutSteps struct{ steps }

func (cutSteps) States(context.Context) ([]pscontrol.ServerState, error) {
	return []pscontrol.ServerState{{Present: true, Ready: true, Epoch: 1, KeepsCheckpoints: true}}, nil
}
func (cutSteps) Rollback(context.Context, uint64, uint32, []byte, []byte) error { return nil }
func (cutSteps) SetAt(set []byte) (at pscontrol.SetAt, err error) {
	_, err = fmt.Sscanf(string(set), "set %d", &at.Number)
	return at, err
}
func (cutSteps) Begin(_ context.Context, of pscontrol.CutRequest) (pscontrol.Cut, error) {
	return plainCut(of.Number(0)), nil
}

type plainCut uint64

func (c plainCut) Number() uint64 { return uint64(c) }
func (c plainCut) Write(context.Context, pscontrol.About) ([]byte, error) {
	return fmt.Appendf(nil, "set %d", c), nil
}
func (plainCut) Abort(context.Context) error                { return nil }
func (plainCut) Prune(context.Context, int, []uint64) error { return nil }

// A trainer that waits for a step stops for a cut. Its gradient is in the step after the cut.
func TestStagedStopsForACut(t *testing.T) { overBoth(t, testStagedStopsForACut) }

func testStagedStopsForACut(t *testing.T) {
	store := etcdtest.Store(t)
	checkpoints := pscontrol.Config{CheckpointEvery: pscontrol.Cadence{Time: 100 * time.Millisecond}, CheckpointKeep: 1}
	config := master.Config{Sync: true, Queue: taskqueue.Options{ExplicitCommit: true, Cuts: true}}
	r := mastertest.StandBy(t, store, config, cutSteps{newSteps()}, checkpoints)
	r.AwaitLeading()
	r.Register(10)
	locate := trainer.At(r.Addr)
	a, b := join(t, "a", locate), join(t, "b", locate)
	next(t, a, nil)
	next(t, b, nil)
	staged := make(chan error, 1)
	go func() {
		for {
			committed, included, err := a.Staged(within(t), 0, 1, 7)
			if err == nil && committed == 0 {
				continue // no outcome yet
			}
			if err == nil && (committed != 1 || !included) {
				err = fmt.Errorf("committed %d, included %v", committed, included)
			}
			staged <- err
			return
		}
	}()
	set := func() string {
		value, _, err := store.Value(t.Context(), pscontrol.LatestSetKey)
		if err != nil {
			t.Fatal(err)
		}
		return string(value)
	}
	first := set()
	for began := time.Now(); set() == first || set() == ""; {
		if err := b.Boundary(within(t)); err != nil {
			t.Fatal(err)
		}
		if time.Since(began) > 30*time.Second {
			t.Fatal("expected a complete cut while a trainer waits for a step")
		}
	}
	for {
		if committed, included, err := b.Staged(within(t), 0, 1, 3); err != nil || included {
			if err != nil || committed != 1 {
				t.Errorf("got %d, %v, %v", committed, included, err)
			}
			break
		}
	}
	if err := <-staged; err != nil {
		t.Error(err)
	}
}
