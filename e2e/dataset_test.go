package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"trainmaster/recordio"
)

// F40: a file ends in the middle of a chunk. The trainer that reports it exits with an error that names the file and the
// offset of the chunk. Another trainer can then report complete files.
func TestTruncatedFile(t *testing.T) {
	t.Parallel()
	j := newJob(t)
	master := j.master("--ps", "1")
	j.server()
	whole := j.data.Train.Paths[1]
	index, err := recordio.Open(whole)
	if err != nil {
		t.Fatal(err)
	}
	chunks, err := index.Index()
	if err != nil {
		t.Fatal(err)
	}
	if err := index.Close(); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(whole)
	if err != nil {
		t.Fatal(err)
	}
	last := chunks[len(chunks)-1]
	cut := filepath.Join(t.TempDir(), "cut")
	if err := os.WriteFile(cut, content[:len(content)-7], 0o600); err != nil {
		t.Fatal(err)
	}
	bad := j.trainerOn("bad", []string{j.data.Train.Paths[0], cut})
	bad.wantExit(1)
	for _, words := range []string{"report the dataset", fmt.Sprintf("%s: byte %d: truncated", cut, last.Offset)} {
		if !strings.Contains(bad.log(), words) {
			t.Errorf("log of the trainer: expected %q", words)
		}
	}
	j.trainer("good").wantExit(0)
	master.wantExit(0)
	j.wantExactlyOnce(1, tasksPerPass)
}

// F31: the first report defines the dataset. The same files in another order are the same dataset. For other files, the
// error names the difference.
func TestDifferentDatasets(t *testing.T) {
	t.Parallel()
	j := newJob(t)
	master := j.master("--passes", "2", "--ps", "1")
	j.server()
	first := j.trainer("first")
	j.awaitMidPass(1)
	paths := j.data.Train.Paths

	fewer := j.trainerOn("fewer", paths[1:])
	fewer.wantExit(1)
	more := j.trainerOn("more", append(j.data.Test.Paths[:1:1], paths...))
	more.wantExit(1)
	for p, differs := range map[*process]string{fewer: paths[0], more: j.data.Test.Paths[0]} {
		for _, words := range []string{"another dataset", differs} {
			if !strings.Contains(p.log(), words) {
				t.Errorf("log of trainer %q: expected %q", p.name, words)
			}
		}
	}

	second := j.trainerOn("second", reversed(paths))
	first.wantExit(0)
	second.wantExit(0)
	master.wantExit(0)
	h := j.wantExactlyOnce(2, tasksPerPass)
	if h.sessions["second"] != 1 {
		t.Errorf("the trainer with the same files in another order joined %d times, expected once", h.sessions["second"])
	}
}
