package e2e

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	pb "trainmaster/proto/trainmaster/v1"
)

// etcdDisk is the size of a disk on which an embedded etcd can work: its write-ahead log takes 64 MB in advance, twice.
const etcdDisk = "200m"

// wantFullDisk fails the test unless a process ended because of its full disk and says so.
func (p *process) wantFullDisk(words ...string) {
	p.t.Helper()
	p.wantExit(exitStore)
	for _, w := range append(words, "the disk is full", "make room on") {
		if !strings.Contains(p.log(), w) {
			p.t.Errorf("expected %q in: %s", w, tail(p.log(), 5))
		}
	}
	for _, w := range []string{"goroutine ", "panic"} {
		if strings.Contains(p.log(), w) {
			p.t.Errorf("found %q, expected a message for users: %s", w, tail(p.log(), 20))
		}
	}
}

// fillUntilEnd keeps a disk full until a process has ended.
func fillUntilEnd(t testing.TB, ballast string, p *process) {
	t.Helper()
	eventually(t, "the process on the full disk ends", func() (bool, string) {
		fill(t, ballast)
		select {
		case <-p.gone:
			return true, ""
		default:
			return false, tail(p.log(), 3)
		}
	})
}

// F51: the disk of a `master run` is full. The run ends with the reason, leaves no process, and can be continued when there is
// room: every task that was finished counts.
func TestRunContinuesAfterFullDisk(t *testing.T) {
	t.Parallel()
	disk := filepath.Join(t.TempDir(), "disk")
	smallDisk(t, disk, etcdDisk)
	r := startRun(t, "--passes", "1000000", "--dir", disk)
	started := r.awaitChildren()
	r.awaitPass(3)
	dir, ballast := filepath.Join(disk, "001"), filepath.Join(disk, "ballast")
	fillUntilEnd(t, ballast, r.process)
	r.wantFullDisk(dir, "continue with: master run --resume "+dir)
	for _, c := range started {
		eventually(t, c.kind()+" is gone", func() (bool, string) { return c.ended(), "" })
	}
	again := start(t, "run", r.job.dir, "run", "--resume", dir)
	fillUntilEnd(t, ballast, again)
	again.wantFullDisk("continue with: master run --resume " + dir)

	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	run(t, r.job.dir, "verify", "--data-dir", filepath.Join(dir, "etcd")).wants(t, 0)
	resumed := start(t, "run", r.job.dir, "run", "--resume", dir)
	eventually(t, "the run goes on", func() (bool, string) {
		return regexp.MustCompile(`pass ([4-9]|[1-9][0-9]+)/1000000`).MatchString(resumed.log()), tail(resumed.log(), 3)
	})
	resumed.signal(syscall.SIGINT)
	resumed.wantExit(exitInterrupted)
	run(t, r.job.dir, "verify", "--data-dir", filepath.Join(dir, "etcd")).wants(t, 0)
}

// F51: the same of a master with an etcd of its own.
func TestMasterContinuesAfterFullDisk(t *testing.T) {
	t.Parallel()
	j := &job{t: t, name: "default", dir: t.TempDir()}
	j.data = digits(t, j.dir)
	disk := filepath.Join(j.dir, "disk")
	smallDisk(t, disk, etcdDisk)
	ballast := filepath.Join(disk, "ballast")
	flags := []string{"--data-dir", filepath.Join(disk, "data"), "--listen", "127.0.0.1:0", "--http", "", "--passes", "1000000", "--ps", "1"}
	m := start(t, "master", j.dir, flags...)
	m.awaitLog("leading")
	j.endpoint = regexp.MustCompile(`endpoint="(http://[0-9.:]+)"`).FindStringSubmatch(m.log())[1]
	r := runJob{job: j, process: m}
	r.open()
	j.server()
	j.trainer("a")
	r.awaitPass(2)
	fillUntilEnd(t, ballast, m)
	m.wantFullDisk(filepath.Join(disk, "data"), "start the same command again")
	again := start(t, "master", j.dir, flags...)
	fillUntilEnd(t, ballast, again)
	again.wantFullDisk(filepath.Join(disk, "data"))
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	m = start(t, "master", j.dir, flags...)
	m.awaitLog("leading")
	r.awaitPass(4)
	s := r.awaitStatus("the job goes on", func(s *pb.StatusReply) bool { return s.Datasets[0].Pass >= 4 })
	if s.Epoch != 1 {
		t.Errorf("epoch %d, expected that the job never went back", s.Epoch)
	}
	m.signal(syscall.SIGTERM)
	m.wantExit(0)
	run(t, j.dir, "verify", "--data-dir", filepath.Join(disk, "data")).wants(t, 0)
}
