package agent_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"trainmaster/recordio"
	"trainmaster/taskqueue"
)

var update = flag.Bool("update", false, "rewrite testdata/transcript.txt from the replies")

// varying are the parts of replies that differ between runs.
var varying = []struct {
	pattern *regexp.Regexp
	with    string
}{
	{regexp.MustCompile(`"incarnation":\d+`), `"incarnation":INCARNATION`},
	{regexp.MustCompile(`"job_id":"[0-9a-f]+"`), `"job_id":"JOB_ID"`},
	{regexp.MustCompile(`"stamp":\[(\d+),\d+,""\]`), `"stamp":[$1,MTIME,""]`},
}

// The transcript has lines "> request" and "< reply", and comments. After the reply to a chunk, lines "= record" have its records. DIR stands for
// the directory of the dataset, and a number TASK.CHUNK in a request chunk for that chunk of an earlier reply.
func TestTranscript(t *testing.T) {
	const path = "testdata/transcript.txt"
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	m := lead(t, taskqueue.Options{Passes: 1})
	serveParameters(t, 1)
	p := begin(t, m.Addr, "trainer-0", "")
	dir := filepath.Dir(dataset(t, recordio.WriterOptions{}))
	var chunk json.RawMessage // the first of the last task
	var out strings.Builder
	var free uint64
	for line := range strings.Lines(string(text)) {
		request, isRequest := strings.CutPrefix(line, "> ")
		switch {
		case isRequest:
			out.WriteString(line)
		case strings.HasPrefix(line, "#"), line == "\n":
			out.WriteString(line)
			continue
		default:
			continue
		}
		body := strings.NewReplacer("DIR", dir).Replace(strings.TrimSpace(request))
		if rest, ok := strings.CutSuffix(body, `,...}`); ok { // the fields of the chunk
			body = rest + "," + strings.TrimPrefix(string(chunk), "{")
		}
		body = strings.Replace(body, `"key":0`, `"key":`+string(must(json.Marshal(free))), 1)
		p.raw([]byte(body))
		if !strings.Contains(body, `"id":`) {
			continue
		}
		a, err := p.receive()
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if len(a.Tasks) > 0 {
			var reply struct {
				Tasks []struct{ Chunks []json.RawMessage }
			}
			if err := json.Unmarshal(a.raw, &reply); err != nil {
				t.Fatal(err)
			}
			chunk = reply.Tasks[0].Chunks[0]
		}
		said := strings.ReplaceAll(string(a.raw), dir, "DIR")
		for _, v := range varying {
			said = v.pattern.ReplaceAllString(said, v.with)
		}
		out.WriteString("< " + said + "\n")
		switch {
		case a.FD && a.Key == 0: // memory of parameter servers
			unix.Close(p.fds[0])
			p.fds = p.fds[1:]
		case a.FD:
			free = a.Key
			for _, r := range p.records(t, a) {
				out.WriteString("= " + r + "\n")
			}
		}
	}
	if *update {
		if err := os.WriteFile(path, []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if !bytes.Equal(text, []byte(out.String())) {
		t.Errorf("expected the transcript\n%s\nfound\n%s", text, out.String())
	}
}

func must(b []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return b
}
