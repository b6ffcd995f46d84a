package ledger_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"trainmaster/etcdstore"
	"trainmaster/etcdstore/etcdtest"
	"trainmaster/ledger"
	"trainmaster/recordio"
	"trainmaster/taskqueue"
)

const jobID = "000102030405060708090a0b0c0d0e0f"

// written returns the ledger of a real queue with passes of the given number of tasks and a commit after each event.
// One task fails too often in the first pass. Every tenth commit has no events.
func written(t testing.TB, tasks, passes int) ([]ledger.Entry, *taskqueue.Snapshot) {
	t.Helper()
	return writtenAt(t, tasks, passes, func(n int) time.Time { return jobBegan.Add(time.Duration(n) * time.Second) })
}

var jobBegan = time.UnixMilli(1_700_000_000_000)

// writtenAt is written with the clock of the leader as a function of the entry number.
func writtenAt(t testing.TB, tasks, passes int, clock func(n int) time.Time) ([]ledger.Entry, *taskqueue.Snapshot) {
	t.Helper()
	q := taskqueue.New("job", [16]byte{1}, 7, taskqueue.Options{Passes: passes, MaxFailures: 1})
	var entries []ledger.Entry
	n := 0
	do := func(ev taskqueue.Event) taskqueue.Answer {
		if q.Commit()%10 == 8 {
			q.Touch()
			q.Ready()
		}
		a := q.Apply(q.Clock()+10, ev)
		f := q.Ready()
		n++
		if len(f.Entries) > 0 {
			entries = append(entries, ledger.Entry{Commit: q.Commit(), Events: taskqueue.StampEvents(f.Entries, clock(n))})
		}
		return a
	}
	table := taskqueue.NewTable(tasks)
	chunks := make([]recordio.Index, tasks)
	for i := range chunks {
		chunks[i] = recordio.Index{Offset: int64(i) * (recordio.HeaderSize + 100), Size: 100, Records: 10, Layout: 1}
	}
	if err := table.Add(taskqueue.File{Path: "/data/a", Size: 1}, chunks); err != nil {
		t.Fatal(err)
	}
	do(&taskqueue.Report{SetSpec: taskqueue.SetSpec{Shuffle: true, Seed: 42}, Digest: [32]byte{9}, ReportID: "r", Table: table})
	j := do(&taskqueue.Join{ID: "a"})
	request := &taskqueue.Request{Trainer: j.Ordinal, Incarnation: j.Incarnation, Want: true}
	for range tasks*passes + 10 {
		request.Seq++
		request.Ack = request.Seq
		a := do(request)
		if a.Kind == taskqueue.AnswerEnded {
			return entries, q.Snapshot(1, 2)
		}
		if a.Kind != taskqueue.AnswerTask {
			t.Fatalf("%+v", a)
		}
		request.Finished = []taskqueue.Result{{Token: a.Token}}
		if a.Index == 2 && a.Token.Pass == 1 {
			request.Finished[0].Error = "bad"
		}
	}
	t.Fatal("expected the end of the job")
	return nil, nil
}

// job is a ledger in a real etcd with functions that seal and read it.
type job struct {
	keeps  int // files after retention; 0: seal does not wait for it
	t      testing.TB
	store  *etcdstore.Store
	dir    string // "": sealed in etcd
	all    []ledger.Entry
	state  *taskqueue.Snapshot
	config ledger.Config
	log    *logtest.Hook
	logger *logrus.Logger

	leftOver bool // expect files that no leader removes
}

// newJob writes a whole ledger to etcd.
func newJob(t testing.TB, inFolder bool) *job {
	t.Helper()
	j := &job{t: t, store: etcdtest.Store(t)}
	j.all, j.state = written(t, 12, 4)
	j.put(j.all)
	if inFolder {
		j.dir = t.TempDir()
	}
	j.config = ledger.Config{Dir: j.dir, Every: 15, Keep: ledger.Keep{All: true}}
	j.logger, j.log = logtest.NewNullLogger()
	return j
}

func (j *job) put(entries []ledger.Entry) {
	j.t.Helper()
	for _, e := range entries {
		if _, err := j.store.Client().Put(context.Background(), j.store.Prefix()+taskqueue.LedgerKey(e.Commit), string(e.Events)); err != nil {
			j.t.Fatal(err)
		}
	}
}

// bothWays runs a test with sealed files in a directory and with sealed files in etcd.
func bothWays(t *testing.T, test func(t *testing.T, inFolder bool)) {
	t.Run("folder", func(t *testing.T) { test(t, true) })
	t.Run("etcd", func(t *testing.T) { test(t, false) })
}

func (j *job) campaign() *etcdstore.Lock {
	j.t.Helper()
	lock, err := j.store.Campaign(context.Background(), etcdstore.CampaignConfig{Address: "here", TTL: time.Minute})
	if err != nil {
		j.t.Fatal(err)
	}
	return lock
}

func (j *job) resign(lock *etcdstore.Lock) {
	j.t.Helper()
	if err := lock.Resign(context.Background()); err != nil {
		j.t.Fatal(err)
	}
}

func (j *job) sealer() *ledger.Sealer {
	return &ledger.Sealer{Store: j.store, Config: j.config, Log: logrus.NewEntry(j.logger)}
}

func (j *job) progress() ledger.Progress { return ledger.Progress{Commit: j.state.Commit} }

// sealable returns the last commit that is sealed without failures.
func (j *job) sealable() uint64 { return j.state.Commit - j.state.Commit%j.config.Every }

// seal runs the sealer as the leader until it has sealed every sealable commit, or fails.
func (j *job) seal(s *ledger.Sealer) error {
	j.t.Helper()
	lock := j.campaign()
	defer j.resign(lock)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, lock, jobID, j.progress) }()
	deadline := time.After(5 * time.Minute) // a busy machine seals slowly
	for {
		select {
		case err := <-done:
			return err
		case <-deadline:
			j.t.Fatalf("not sealed: %+v, %v", s.Status(), j.logged())
		case <-time.After(time.Millisecond):
			if j.settled() {
				cancel()
				<-done
				return nil
			}
		}
	}
}

// settled reports whether every sealable commit is sealed and deleted from etcd.
func (j *job) settled() bool {
	h := j.head()
	if j.state.Commit-h.Through >= j.config.Every || j.config.Keep.Bytes == 1 && h.Files != 1 || j.keeps > 0 && h.Files != j.keeps {
		return false
	}
	left, _, _, err := j.store.LedgerEntries(context.Background(), 1, h.Through, 1)
	if err != nil {
		j.t.Fatal(err)
	}
	return len(left) == 0 && (j.leftOver || len(j.files()) == h.Files)
}

func (j *job) head() ledger.Head {
	j.t.Helper()
	value, _, err := j.store.Value(context.Background(), ledger.HeadKey)
	if err != nil {
		j.t.Fatal(err)
	}
	h, err := ledger.ParseHead(value)
	if err != nil {
		j.t.Fatal(err)
	}
	return h
}

// files returns all present files, including temporary and unreferenced files.
func (j *job) files() []string {
	j.t.Helper()
	var names []string
	if j.dir == "" {
		keys, err := j.store.Keys(context.Background(), ledger.PartsKeys)
		if err != nil {
			j.t.Fatal(err)
		}
		for _, key := range keys {
			names = append(names, strings.TrimPrefix(key, ledger.PartsKeys))
		}
		return names
	}
	entries, err := os.ReadDir(filepath.Join(j.dir, "default"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		j.t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() != "id" {
			names = append(names, e.Name())
		}
	}
	return names
}

// read returns all kept entries.
func (j *job) read() ([]ledger.Entry, *ledger.Reader, error) {
	reader, err := ledger.Open(context.Background(), j.store, "", j.dir)
	if err != nil {
		return nil, nil, err
	}
	var found []ledger.Entry
	for e, err := range reader.Entries(context.Background(), j.state.Commit) {
		if err != nil {
			return found, reader, err
		}
		found = append(found, e)
	}
	return found, reader, nil
}

// wantAll checks that every commit is read once.
func (j *job) wantAll() {
	j.t.Helper()
	found, _, err := j.read()
	if err != nil {
		j.t.Fatal(err)
	}
	if !reflect.DeepEqual(found, j.all) {
		j.t.Fatalf("read commits %v, expected %v", commits(found), commits(j.all))
	}
}

func commits(entries []ledger.Entry) []uint64 {
	var list []uint64
	for _, e := range entries {
		list = append(list, e.Commit)
	}
	return list
}

func (j *job) logged() []string {
	var lines []string
	for _, e := range j.log.AllEntries() {
		line, _ := e.String()
		lines = append(lines, line)
	}
	return lines
}
