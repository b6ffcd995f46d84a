package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"

	"trainmaster/internal/freeport"
	"trainmaster/scripts/prepared"
	"trainmaster/trainer"
	"trainmaster/trainer/model"
	"trainmaster/trainer/reference"
)

// output is the standard output of a process.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// line returns the words after the first word of a line; nil if there is no such line.
func (o *output) line(first string) []string {
	for line := range strings.Lines(o.String()) {
		if words := strings.Fields(line); len(words) > 0 && words[0] == first {
			return words[1:]
		}
	}
	return nil
}

// F182, F63: a trainer in Python serves TrainerControl from the .proto files alone. The leader refuses addresses of other hosts. When the
// trainer hangs, its task is dispatched to another trainer, and the leader calls the port: the trainer gives up this task and no other.
func TestPythonTrainerIsStopped(t *testing.T) {
	t.Parallel()
	const passes = 4
	prepared.Python(t)
	j := newJob(t)
	master := j.master("--passes", "4", "--task-timeout-min", "2s")
	j.awaitLeader(0)
	if _, err := j.leader(); err != nil {
		t.Fatal(err)
	}
	var out output
	process := pythonCommand(t.Context(), t, "testdata/controlled_trainer.py", j.connTo, filepath.Join(j.dir, "data", "digits-0*"))
	process.Stdout, process.Stderr = &out, &out
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the trainer hangs", func() (bool, string) { return out.line("hangs") != nil, out.String() })
	var copied bytes.Buffer
	version, err := trainer.CopyModel(t.Context(), fmt.Sprintf("127.0.0.1:%s", out.line("port")[0]), &copied)
	if err != nil || version != 7 || copied.String() != strings.Repeat("model", 500_000) {
		t.Errorf("copied model: version %d of %d bytes, %v", version, copied.Len(), err)
	}
	if err := process.Wait(); err != nil || !strings.Contains(out.String(), "end REASON_PASSES_DONE") {
		t.Fatalf("trainer: %v\n%s", err, out.String())
	}
	if hung, stopped := out.line("hangs"), out.line("stopped"); len(stopped) != 1 || stopped[0] != hung[0] {
		t.Errorf("hung on task %v, found the stop of %v\n%s", hung, stopped, out.String())
	}
	if strings.Contains(out.String(), "stopped a newer task") {
		t.Errorf("a newer task was stopped\n%s", out.String())
	}
	if n := strings.Count(out.String(), "INVALID_ARGUMENT trainer control address"); n != 4 {
		t.Errorf("expected 4 refused addresses, found %d\n%s", n, out.String())
	}
	master.wantExit(0)
	j.wantVerified(passes, tasksPerPass)
}

// F183: a trainer is killed while it sends its model. The copy is an error, and a copy of a trainer that lives is a model.
func TestKilledTrainerLeavesNoCopyOfItsModel(t *testing.T) {
	t.Parallel()
	j := newJob(t)
	j.master("--passes", "0", "--ps", "1")
	j.server()
	addr, err := freeport.Addr("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	a := j.trainer("a", "--model", "mlp", "--hidden", "10000", "--control-listen", addr)
	var content bytes.Buffer
	eventually(t, "a sends its model", func() (bool, string) {
		content.Reset()
		version, err := trainer.CopyModel(t.Context(), addr, &content)
		return err == nil && version > 0, fmt.Sprint(version, err)
	})
	path := filepath.Join(j.dir, "copy.safetensors")
	if err := os.WriteFile(path, content.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	saved, err := reference.ReadSaved(path)
	if err != nil || saved.Config.Hidden != 10000 || saved.Version == 0 {
		t.Errorf("copied model: hidden %d, version %d, %v", saved.Config.Hidden, saved.Version, err)
	}
	initial, err := model.New(saved.Kind, saved.Config)
	if err != nil {
		t.Fatal(err)
	}
	if reflect.DeepEqual(saved.Tensors, initial.Parameters()) {
		t.Error("copied model: expected trained parameters, found the initial ones")
	}
	if _, err := trainer.CopyModel(t.Context(), addr, &killer{process: a}); !errors.Is(err, trainer.ErrIncompleteModel) {
		t.Errorf("copy of a killed trainer: %v", err)
	}
}

// killer kills a process when the first bytes arrive.
type killer struct {
	process *process
	killed  bool
}

func (k *killer) Write(p []byte) (int, error) {
	if !k.killed {
		k.killed = true
		k.process.kill()
	}
	return len(p), nil
}
