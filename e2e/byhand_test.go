package e2e

import (
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"trainmaster/etcdstore/etcdtest"
	"trainmaster/testdata"
)

var shellBlock = regexp.MustCompile("(?s)```sh\n(.*?)```")

// byHand returns a workshop with the commands of docs/by-hand.md as examples.
func byHand(t testing.TB) *workshop {
	t.Helper()
	page, err := os.ReadFile("../docs/by-hand.md")
	if err != nil {
		t.Fatal(err)
	}
	w := &workshop{t: t, dir: t.TempDir(), etcd: etcdtest.StartProcess(t, 0).Endpoint(), left: map[string]bool{}}
	for _, block := range shellBlock.FindAllSubmatch(page, -1) {
		for line := range strings.Lines(string(block[1])) {
			if line = strings.TrimSpace(line); strings.HasPrefix(line, "master ") { // other commands build the program and start etcd
				w.left[line] = true
			}
		}
	}
	w.replace = strings.NewReplacer("127.0.0.1:2379", strings.TrimPrefix(w.etcd, "http://"), "127.0.0.1:8080", "127.0.0.1:0")
	w.env = []string{"TRAINMASTER_HTTP=127.0.0.1:0"}
	w.write("testdata/digits.csv.gz", testdata.Digits)
	return w
}

func TestByHand(t *testing.T) {
	t.Parallel()
	w := byHand(t)
	w.shell("master recordio convert --format csv --shards 4 --held-out 0.2 testdata/digits.csv.gz data/digits")
	master := w.start("master --endpoints 127.0.0.1:2379 --listen 127.0.0.1:8080 --passes 10 --ps 1")
	master.awaitLog("leading")
	watch := w.start("master status --endpoints 127.0.0.1:2379 --watch")
	w.shell("master queues --endpoints 127.0.0.1:2379")
	w.shell("master trainers --endpoints 127.0.0.1:2379")
	server := w.start("master pserver --endpoints 127.0.0.1:2379 --checkpoint-dir checkpoints")
	trainer := w.start("master trainer --endpoints 127.0.0.1:2379 --data 'data/digits-0*' --model mlp --save-model digits.safetensors")
	trainer.wantExit(0)
	master.wantExit(0)
	watch.wantExit(0)
	if log := master.log(); !strings.Contains(log, "done: the job ended after 10 passes") {
		t.Errorf("expected the message of an ended job, found: %s", log)
	}
	server.signal(syscall.SIGTERM)
	server.wantExit(0)
	if said := w.shell("master status --endpoints 127.0.0.1:2379"); !strings.Contains(said, "ended") {
		t.Errorf("status of the ended job: %s", said)
	}
	w.shell("master queues --endpoints 127.0.0.1:2379 --literal")
	w.shell("master verify --endpoints 127.0.0.1:2379")

	embedded := w.start("master --data-dir trainmaster-data --listen 127.0.0.1:8080 --passes 10 --ps 1")
	embedded.awaitLog("leading")
	embedded.signal(syscall.SIGTERM)
	embedded.wantExit(0)
	if log := embedded.log(); !strings.Contains(log, "stopped before the end of the job") {
		t.Errorf("expected the message of a stopped master, found: %s", log)
	}

	whole := start(t, "run", w.dir, "run", "--passes", "1000000")
	eventually(t, "the run has a leader", func() (bool, string) {
		return strings.Contains(whole.log(), "look in with") && run(t, w.dir, "status").code == 0, whole.log()
	})
	watch = w.start("master status --watch")
	watch.awaitLog("leader")
	watch.signal(syscall.SIGINT)
	watch.wantExit(0)
	whole.signal(syscall.SIGINT)
	whole.wantExit(exitInterrupted)
	w.shell("master verify --data-dir trainmaster-run/001/etcd")
	w.shell("master queues --data-dir trainmaster-run/001/etcd --literal")
	for line := range w.left {
		t.Errorf("docs/by-hand.md: expected this test to run %q", line)
	}
}
