package ledger_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"trainmaster/internal/failpoint"
	"trainmaster/ledger"
	"trainmaster/master/mastertest"
	"trainmaster/taskqueue"
)

func TestSeal(t *testing.T) {
	bothWays(t, func(t *testing.T, inFolder bool) {
		j := newJob(t, inFolder)
		j.wantAll() // before
		s := j.sealer()
		if err := j.seal(s); err != nil {
			t.Fatal(err)
		}
		j.wantAll()
		h := j.head()
		if h.From != 1 || h.Through != j.sealable() || h.Files != int(j.sealable()/j.config.Every) || len(j.files()) != h.Files || h.ID != jobID {
			t.Errorf("%+v with %d files", h, len(j.files()))
		}
		if got := s.Status(); got.Sealed != h.Through || got.Bytes != h.Bytes || got.Failures != 0 || got.Failure != "" {
			t.Errorf("%+v", got)
		}
	})
}

// Events beyond the limit of bytes are sealed before the number of commits is reached.
func TestSealBySize(t *testing.T) {
	j := newJob(t, true)
	j.config.Every, j.config.Bytes = 1<<40, 100
	lock := j.campaign()
	defer j.resign(lock)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	total := uint64(0)
	for _, e := range j.all {
		total += uint64(len(e.Events))
	}
	go func() {
		done <- j.sealer().Run(ctx, lock, jobID, func() ledger.Progress { return ledger.Progress{Commit: j.state.Commit, Bytes: total} })
	}()
	for left := j.config.Bytes; left >= j.config.Bytes; time.Sleep(time.Millisecond) { // interval between checks
		entries, _, _, err := j.store.LedgerEntries(ctx, 1, j.state.Commit, 1000)
		if err != nil {
			t.Fatal(err)
		}
		left = 0
		for _, e := range entries {
			left += len(e.Events)
		}
	}
	cancel()
	<-done
	if h := j.head(); h.Files < int(total/200) {
		t.Errorf("%d files of %d bytes of events", h.Files, total)
	}
	j.wantAll()
}

// A leader that dies after any step of sealing loses and doubles nothing. The next leader completes the step and
// leaves no unused file or key.
func TestCrashAfterEveryStep(t *testing.T) {
	bothWays(t, func(t *testing.T, inFolder bool) {
		var steps []string
		crashed := map[string]int{}
		for at := 0; at == 0 || at < len(steps); at++ {
			j := newJob(t, inFolder)
			j.config.Keep = ledger.Keep{Bytes: 1} // removal of old files runs too
			j.config.Every = 16
			s := j.sealer()
			var seen []string
			s.OnStep(func(name string) error {
				if seen = append(seen, name); len(seen) == at+1 {
					return fmt.Errorf("%w after %s", failpoint.ErrCrash, name)
				}
				return nil
			})
			if err := j.seal(s); !errors.Is(err, failpoint.ErrCrash) {
				t.Fatalf("step %d: %v", at, err)
			}
			name := seen[at]
			crashed[name]++
			found, reader, err := j.read()
			if err != nil {
				t.Fatalf("step %d, %s: %v", at, name, err)
			}
			j.wantFrom(found, reader)
			if at == 0 { // count the steps without a crash
				whole := newJob(t, inFolder)
				whole.config = j.config
				whole.config.Dir = whole.dir
				s := whole.sealer()
				s.OnStep(func(name string) error { steps = append(steps, name); return nil })
				if err := whole.seal(s); err != nil {
					t.Fatal(err)
				}
			}
			if err := j.seal(j.sealer()); err != nil {
				t.Fatalf("the leader after a crash at step %d, %s: %v", at, name, err)
			}
			found, reader, err = j.read()
			if err != nil {
				t.Fatalf("step %d, %s, by the next leader: %v", at, name, err)
			}
			j.wantFrom(found, reader)
			if h := j.head(); h.Files != 1 || len(j.files()) != 1 {
				t.Errorf("step %d, %s: expected the %d files of the head, found %v", at, name, h.Files, j.files())
			}
		}
		want := []string{"head replaced", "keys deleted", "files forgotten"}
		if inFolder {
			want = append(want, "file written", "file synced", "file renamed", "folder synced")
		}
		for _, name := range want {
			if crashed[name] == 0 {
				t.Errorf("expected a crash after %q", name)
			}
		}
	})
}

// wantFrom checks that every commit after the outline is read once, and that the verified part agrees with the state.
func (j *job) wantFrom(found []ledger.Entry, reader *ledger.Reader) {
	j.t.Helper()
	want := j.all
	for len(want) > 0 && want[0].Commit <= reader.Outline().Commit {
		want = want[1:]
	}
	if !reflect.DeepEqual(found, want) {
		j.t.Fatalf("read commits %v, expected %v", commits(found), commits(want))
	}
	v, err := taskqueue.ResumeVerifier(reader.Outline())
	if err != nil {
		j.t.Fatal(err)
	}
	for _, e := range found {
		if err := v.Add(e.Commit, e.Events); err != nil {
			j.t.Fatal(err)
		}
	}
	if err := v.CrossCheck(j.state); err != nil {
		j.t.Fatal(err)
	}
	for _, p := range v.Report() {
		if !p.Unseen && p.CountedOnce+p.SetAside != p.Tasks || p.Unseen && p.CountedOnce+p.SetAside+p.Missing+p.CountedTwice != 0 {
			j.t.Errorf("%+v", p)
		}
	}
}

// A file of a former leader never becomes part of the ledger, at any later time. A former leader deletes nothing.
func TestFormerLeaderSealsNothing(t *testing.T) {
	for _, at := range []string{"file written", "folder synced", "head replaced", "keys deleted"} {
		t.Run(at, func(t *testing.T) {
			j := newJob(t, true)
			first := j.campaign()
			s := j.sealer()
			var once sync.Once
			s.OnStep(func(name string) error {
				if name == at {
					once.Do(func() { // the sealer pauses here while another leader takes over and seals other ranges
						j.resign(first)
						j.config.Every, j.leftOver = 20, true
						if err := j.seal(j.sealer()); err != nil {
							t.Error(err)
						}
					})
				}
				return nil
			})
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- s.Run(ctx, first, jobID, j.progress) }()
			for ended := false; !ended && s.Status().Failures == 0; { // or until the next leader has removed its file
				select {
				case err := <-done:
					ended = true
					if !errors.Is(err, taskqueue.ErrFenced) {
						t.Errorf("former leader: got error %v", err)
					}
				case <-time.After(time.Millisecond):
				}
			}
			cancel()
			j.wantAll()
			j.leftOver = false
			if err := j.seal(j.sealer()); err != nil { // the next leader removes unused files
				t.Fatal(err)
			}
			j.wantAll()
			if h := j.head(); j.state.Commit-h.Through >= j.config.Every || len(j.files()) != h.Files {
				t.Errorf("%+v with files %v", h, j.files())
			}
		})
	}
}

// Readers that run while the ledger is sealed read every commit once, for any interleaving.
func TestReadWhileSealing(t *testing.T) {
	bothWays(t, func(t *testing.T, inFolder bool) {
		j := newJob(t, inFolder)
		j.config.Every = 3
		s := j.sealer()
		var reads int
		s.OnStep(func(string) error { // after each step
			j.wantAll()
			reads++
			return nil
		})
		reader, err := ledger.Open(t.Context(), j.store, "", j.dir)
		if err != nil {
			t.Fatal(err)
		}
		var found []ledger.Entry
		for e, err := range reader.Entries(t.Context(), j.state.Commit) { // sealing overtakes one reader
			if err != nil {
				t.Fatal(err)
			}
			if found = append(found, e); len(found) == 5 {
				if err := j.seal(s); err != nil {
					t.Fatal(err)
				}
			}
		}
		if !reflect.DeepEqual(found, j.all) {
			t.Errorf("read commits %v, expected %v", commits(found), commits(j.all))
		}
		if reads < 30 {
			t.Errorf("found only %d reads during the sealing", reads)
		}
	})
}

func TestKeep(t *testing.T) {
	all := ledger.Keep{All: true}
	for name, tt := range map[string]struct {
		keep  ledger.Keep
		files int // 0: all
	}{
		"all":               {all, 0},
		"as many bytes":     {ledger.Keep{Bytes: 1 << 20}, 0},
		"few bytes":         {ledger.Keep{Bytes: 1}, 1},
		"two hours":         {ledger.Keep{Age: 2 * time.Hour}, 0},
		"a short time":      {ledger.Keep{Age: time.Millisecond}, 2}, // a clock step could explain the age between two files
		"the last 20 s":     {ledger.Keep{Age: 20 * time.Second}, 2},
		"default of etcd":   {ledger.Keep{}, 0},
		"nothing to remove": {ledger.Keep{Bytes: 1 << 40}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			j := newJob(t, name != "default of etcd")
			j.config.Keep, j.keeps = tt.keep, tt.files
			s := j.sealer()
			if err := j.seal(s); err != nil {
				t.Fatal(err)
			}
			j.config.Keep = all
			if err := j.seal(j.sealer()); err != nil {
				t.Fatal(err)
			}
			files := int(j.sealable() / j.config.Every)
			if tt.files != 0 {
				files = tt.files
			}
			h := j.head()
			if h.Files != files || h.Through != j.sealable() || h.From != h.Through-uint64(files)*j.config.Every+1 {
				t.Errorf("%+v, expected %d files", h, files)
			}
			found, reader, err := j.read()
			if err != nil {
				t.Fatal(err)
			}
			j.wantFrom(found, reader)
		})
	}
}

// F15: the clock of the leader steps by a month, forward and back, during a job. All files are at most minutes old,
// so none is removed.
func TestClockStepRemovesNoFile(t *testing.T) {
	const month = 31 * 24 * time.Hour
	for name, step := range map[string]func(n int) time.Duration{
		"forward":    func(n int) time.Duration { return time.Duration(n/30) * month },
		"back":       func(n int) time.Duration { return -time.Duration(n/30) * month },
		"to and fro": func(n int) time.Duration { return time.Duration(n/20%2) * month },
	} {
		t.Run(name, func(t *testing.T) {
			j := newJob(t, true)
			j.all, j.state = writtenAt(t, 12, 4, func(n int) time.Time { return jobBegan.Add(step(n) + time.Duration(n)*time.Second) })
			j.put(j.all)
			j.config.Keep = ledger.Keep{Age: 30 * 24 * time.Hour}
			for range 2 { // the second time after a failover
				if err := j.seal(j.sealer()); err != nil {
					t.Fatal(err)
				}
			}
			if h := j.head(); h.From != 1 || h.Files != int(j.sealable()/j.config.Every) {
				t.Errorf("expected all files to remain, found %+v", h)
			}
			j.wantAll()
		})
	}
}

// Entries that cannot be sealed stay in etcd. The failure is logged once, and the entries are sealed once the
// directory works.
func TestUnwritableDirectoryKeepsEntriesInEtcd(t *testing.T) {
	for name, tt := range map[string]struct {
		breaks func(j *job, s *ledger.Sealer) (mend func())
		says   string
	}{
		"full disk": {func(_ *job, s *ledger.Sealer) func() {
			var mu sync.Mutex
			full := true
			s.OnStep(func(name string) error {
				mu.Lock()
				defer mu.Unlock()
				if full && name == "file written" {
					return syscall.ENOSPC
				}
				return nil
			})
			return func() { mu.Lock(); defer mu.Unlock(); full = false }
		}, "no space left"},
		"no directory": {func(j *job, s *ledger.Sealer) func() {
			s.Config.Dir = filepath.Join(j.dir, "file")
			j.config.Dir, j.dir = s.Config.Dir, s.Config.Dir
			if err := os.WriteFile(j.dir, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			return func() { _ = os.Remove(j.dir) }
		}, "not a directory"},
	} {
		t.Run(name, func(t *testing.T) {
			j := newJob(t, true)
			s := j.sealer()
			s.Retry(10 * time.Millisecond)
			mend := tt.breaks(j, s)
			lock := j.campaign()
			defer j.resign(lock)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- s.Run(ctx, lock, jobID, j.progress) }()
			mastertest.Eventually(t, "3 failures", func() bool { return s.Status().Failures >= 3 })
			if s.Status().Failure == "" || j.head().Through != 0 {
				t.Errorf("%+v, %+v", s.Status(), j.head())
			}
			left, _, _, err := j.store.LedgerEntries(t.Context(), 1, j.state.Commit, 1000)
			if err != nil || len(left) != len(j.all) {
				t.Errorf("%d of %d commits are in etcd, %v", len(left), len(j.all), err)
			}
			if lines := j.logged(); len(lines) != 1 || !strings.Contains(lines[0], "level=error") || !strings.Contains(lines[0], tt.says) {
				t.Errorf("logged %q", lines)
			}
			mend()
			mastertest.Eventually(t, "the end of sealing", j.settled)
			mastertest.Eventually(t, "no failure in the status", func() bool { return s.Status().Failure == "" })
			cancel()
			<-done
			j.wantAll()
			if lines := j.logged(); len(lines) != 2 {
				t.Errorf("logged %q", lines)
			}
		})
	}
}

// A master with another ledger directory must not lead.
func TestCheckRefusesOtherLedgerDirectory(t *testing.T) {
	sealed := func(inFolder bool) func(t *testing.T) *job {
		return func(t *testing.T) *job {
			j := newJob(t, inFolder)
			if err := j.seal(j.sealer()); err != nil {
				t.Fatal(err)
			}
			return j
		}
	}
	fresh := func(t *testing.T) *job { return newJob(t, true) }
	claimed := func(t *testing.T) string {
		dir := t.TempDir()
		if err := (ledger.Directory{Dir: filepath.Join(dir, "default")}).Claim(t.Context(), "another"); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	empty := func(t *testing.T) string { return t.TempDir() }
	none := func(*testing.T) string { return "" }
	for name, tt := range map[string]struct {
		job   func(t *testing.T) *job
		dir   func(t *testing.T) string // nil: its own
		jobID string
		says  string // "": no error
	}{
		"nothing is sealed yet":                 {fresh, nil, jobID, ""},
		"nothing is sealed, no directory":       {fresh, none, jobID, ""},
		"its own directory":                     {sealed(true), nil, "", ""},
		"in etcd":                               {sealed(false), nil, jobID, ""},
		"sealed in a directory, none given":     {sealed(true), none, "", "--ledger-dir"},
		"sealed in etcd, directory given":       {sealed(false), empty, "", "start without --ledger-dir"},
		"an empty directory":                    {sealed(true), empty, "", "is it mounted?"},
		"the directory of another job":          {sealed(true), claimed, "", "the ledger of another job"},
		"a new job in the directory of another": {fresh, claimed, jobID, "the ledger of another job"},
		"before the job id is known":            {fresh, claimed, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			j := tt.job(t)
			if tt.dir != nil {
				j.config.Dir = tt.dir(t)
			}
			err := j.sealer().Check(t.Context(), tt.jobID)
			if tt.says == "" && err != nil || tt.says != "" && (!errors.Is(err, ledger.ErrElsewhere) || !strings.Contains(err.Error(), tt.says)) {
				t.Errorf("found %v, expected %q", err, tt.says)
			}
		})
	}
}

// The ledger of a job that was resumed without its earlier ledger begins with an outline. Reads, proofs and sealing
// begin there. Nothing before the outline is sealed or read.
func TestLedgerResumesFromOutline(t *testing.T) {
	bothWays(t, func(t *testing.T, inFolder bool) {
		j := newJob(t, inFolder)
		const begin = 30
		before := taskqueue.NewVerifier()
		for len(j.all) > 0 && j.all[0].Commit <= begin {
			e := j.all[0]
			if err := before.Add(e.Commit, e.Events); err != nil {
				t.Fatal(err)
			}
			if _, err := j.store.Client().Delete(t.Context(), j.store.Prefix()+taskqueue.LedgerKey(e.Commit)); err != nil {
				t.Fatal(err)
			}
			j.all = j.all[1:]
		}
		outline := before.Outline()
		outline.Commit = begin
		value, err := json.Marshal(outline)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := j.store.Client().Put(t.Context(), j.store.Prefix()+ledger.BeginKey, string(value)); err != nil {
			t.Fatal(err)
		}
		proves := func(what string) {
			t.Helper()
			j.wantAll()
			entries, reader, err := j.read()
			if err != nil || reader.Outline().Commit != begin {
				t.Fatalf("%s: outline %+v, %v; expected that of commit %d", what, reader.Outline(), err, begin)
			}
			v, err := taskqueue.ResumeVerifier(reader.Outline())
			for _, e := range entries {
				if err == nil {
					err = v.Add(e.Commit, e.Events)
				}
			}
			if err == nil {
				err = v.CrossCheck(j.state)
			}
			if err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
		proves("before it is sealed")
		for range 2 { // the second leader reads the files of the first
			if err := j.seal(j.sealer()); err != nil {
				t.Fatal(err)
			}
			proves("sealed")
		}
		if head := j.head(); head.Through != j.sealable() || head.From != begin+1 || head.Files != int(j.sealable()-begin)/int(j.config.Every) {
			t.Errorf("sealed %+v, expected commits %d to %d in files of %d", head, begin+1, j.sealable(), j.config.Every)
		}
	})
}

// The first sealing renames the directory of a replaced job, which keeps its files. The directory of any other job is
// refused.
func TestLedgerOfAReplacedJobIsMoved(t *testing.T) {
	const was = "00112233445566778899aabbccddeeff"
	for name, replaced := range map[string][]string{"replaced": {"of one before", was}, "another": {"of one before"}} {
		t.Run(name, func(t *testing.T) {
			j := newJob(t, true)
			dir := filepath.Join(j.dir, "default")
			if err := (ledger.Directory{Dir: dir}).Claim(t.Context(), was); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, "old.sealed"), []byte("x"), 0o600); err != nil {
				t.Fatal(err)
			}
			begin, err := json.Marshal(ledger.Begin{Replaced: replaced})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := j.store.Client().Put(t.Context(), j.store.Prefix()+ledger.BeginKey, string(begin)); err != nil {
				t.Fatal(err)
			}
			if name == "another" {
				if err := j.sealer().Check(t.Context(), jobID); !errors.Is(err, ledger.ErrElsewhere) {
					t.Errorf("found %v, expected %v", err, ledger.ErrElsewhere)
				}
				return
			}
			if err := j.sealer().Check(t.Context(), jobID); err != nil {
				t.Fatal(err)
			}
			if err := j.seal(j.sealer()); err != nil {
				t.Fatal(err)
			}
			j.wantAll()
			if old, err := os.ReadFile(filepath.Join(dir+"-"+was, "old.sealed")); err != nil || string(old) != "x" {
				t.Errorf("old directory: found %q, %v", old, err)
			}
			if _, err := os.Stat(filepath.Join(dir, "old.sealed")); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("new directory: expected no file of the replaced job, found %v", err)
			}
		})
	}
}
