package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"trainmaster/etcdstore/etcdtest"
	"trainmaster/testdata"
)

// The blocks of docs/datasets.md run as printed: each is a job, with the processes of its lines. Only directories and ports are replaced.
func TestDatasetsPage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/datasets.md")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	p := &pageRun{t: t, dir: dir, etcd: strings.TrimPrefix(etcdtest.StartProcess(t, 0).Endpoint(), "http://")}
	p.files()
	n := 0
	for _, block := range regexp.MustCompile("(?s)```sh\n(export .*?)```").FindAllStringSubmatch(string(page), -1) {
		n++
		p.block(block[1])
	}
	if n != 4 {
		t.Errorf("blocks of docs/datasets.md that begin with export: found %d, expected 4", n)
	}
}

// pageRun runs the blocks of a page.
type pageRun struct {
	t         *testing.T
	dir, etcd string
}

// files writes the files that the page names.
func (p *pageRun) files() {
	p.t.Helper()
	source := filepath.Join(p.dir, "digits.csv.gz")
	if err := os.WriteFile(source, testdata.Digits, 0o600); err != nil {
		p.t.Fatal(err)
	}
	for _, name := range []string{"books", "news", "clicks/part", "late/part", "digits", "new"} {
		run(p.t, p.dir, "recordio", "convert", "--shards", "2", source, filepath.Join(p.dir, "data", name)).wants(p.t, 0)
	}
}

var pageComment = regexp.MustCompile(`(?m)(^| +)#.*$`)

// block runs the lines of a block: masters, parameter servers and trainers in the background, and the last command after the end of the job.
func (p *pageRun) block(text string) {
	p.t.Helper()
	text = pageComment.ReplaceAllString(strings.ReplaceAll(text, "\\\n", " "), "")
	text = strings.NewReplacer("127.0.0.1:2379", p.etcd, "/data", filepath.Join(p.dir, "data"), "'data/", "'"+filepath.Join(p.dir, "data")+"/", "=data/", "="+filepath.Join(p.dir, "data")+"/").Replace(text)
	env := []string{"TRAINMASTER_LISTEN=127.0.0.1:0", "TRAINMASTER_HTTP=127.0.0.1:0", "TRAINMASTER_LINGER=2s"}
	var master *process
	var servers, trainers []*process
	lines := strings.Split(strings.TrimSpace(regexp.MustCompile(`\n\s*\n*`).ReplaceAllString(text, "\n")), "\n")
	for i, line := range lines {
		words := strings.Fields(strings.ReplaceAll(line, "'", ""))
		switch {
		case words[0] == "export":
			env = append(env, words[1:]...)
			continue
		case strings.HasPrefix(words[1], "--"):
			master = p.start(env, words)
			master.awaitLog("leading")
			continue
		case words[1] == "pserver":
			servers = append(servers, p.start(env, words))
			continue
		case words[1] == "trainer":
			trainers = append(trainers, p.start(append(env, "TRAINMASTER_RECORD_DELAY=1ms"), words)) // the next lines find a job that runs
			continue
		case i == len(lines)-1:
			p.end(master, servers, trainers)
			master = nil
		}
		p.shell(env, line)
	}
	if master != nil {
		p.end(master, servers, trainers)
	}
}

func (p *pageRun) end(master *process, servers, trainers []*process) {
	p.t.Helper()
	for _, trainer := range trainers {
		trainer.wantExit(0)
	}
	master.wantExit(0)
	for _, server := range servers {
		server.signal(syscall.SIGTERM)
		server.wantExit(0)
	}
}

func (p *pageRun) start(env, words []string) *process {
	p.t.Helper()
	name := strings.Trim(words[1], "-")
	return startBy(p.t, append([]string{"env"}, env...), name, p.dir, words[1:]...)
}

func (p *pageRun) shell(env []string, line string) {
	p.t.Helper()
	cmd := exec.CommandContext(p.t.Context(), "bash", "-c", line)
	cmd.Dir = p.dir
	cmd.Env = append(append(os.Environ(), env...), "PATH="+filepath.Dir(program(p.t))+":"+os.Getenv("PATH"))
	if out, err := cmd.CombinedOutput(); err != nil {
		p.t.Errorf("%s: %v\n%s", line, err, out)
	}
}
