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

// etcdDisk is a disk size that is enough for an embedded etcd: it preallocates two files of 64 MB for its write-ahead log.
const etcdDisk = "200m"

// wantFullDisk fails the test unless the process exits with an error about its full disk.
func (p *process) wantFullDisk(words ...string) {
	p.t.Helper()
	p.wantExit(exitStore)
	for _, w := range append(words, "the disk is full", "free space on") {
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

// F51: the disk of `master run` is full. The run ends with the reason and leaves no process. It can be resumed when the disk
// has space, and every acknowledged finish counts.
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
		eventually(t, c.kind()+" has ended", func() (bool, string) { return c.ended(), "" })
	}
	again := start(t, "run", r.job.dir, "run", "--resume", dir)
	fillUntilEnd(t, ballast, again)
	again.wantFullDisk("continue with: master run --resume " + dir)

	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	run(t, r.job.dir, "verify", "--data-dir", filepath.Join(dir, "etcd")).wants(t, 0)
	resumed := start(t, "run", r.job.dir, "run", "--resume", dir)
	eventually(t, "the run continues", func() (bool, string) {
		return regexp.MustCompile(`pass ([4-9]|[1-9][0-9]+)/1000000`).MatchString(resumed.log()), tail(resumed.log(), 3)
	})
	resumed.signal(syscall.SIGINT)
	resumed.wantExit(exitInterrupted)
	run(t, r.job.dir, "verify", "--data-dir", filepath.Join(dir, "etcd")).wants(t, 0)
}

// F51: the disk of a master with an embedded etcd is full.
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
	s := r.awaitStatus("the job continues", func(s *pb.StatusReply) bool { return s.Datasets[0].Pass >= 4 })
	if s.Epoch != 1 {
		t.Errorf("epoch %d, expected no rollback", s.Epoch)
	}
	m.signal(syscall.SIGTERM)
	m.wantExit(0)
	run(t, j.dir, "verify", "--data-dir", filepath.Join(disk, "data")).wants(t, 0)
}
