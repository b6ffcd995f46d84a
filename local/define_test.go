package local

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"trainmaster/internal/tcpproxy"
	"trainmaster/master/podmanager"
)

// A resumed run finds relative paths among the arguments of its command.
func TestResumedTrainerRunsInFolderOfRun(t *testing.T) {
	run, folder := t.TempDir(), t.TempDir()
	for _, dir := range []string{"etcd", "logs", "data"} {
		if err := os.Mkdir(filepath.Join(run, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	proxy, err := tcpproxy.New("127.0.0.1:1")
	if err != nil {
		t.Fatal(err)
	}
	defer proxy.Close()
	config := Config{Dir: run, Dataset: "digits", Command: []string{"/bin/sh", "trainer.sh"}, Trainers: 1, Log: silent()}
	t.Chdir(folder)
	if err := os.WriteFile("trainer.sh", []byte("pwd; echo $PWD"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := (&Job{config: config}).begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Chdir(run)
	config.Resume = true
	resumed := &Job{config: config, gate: &gate{proxy: proxy}}
	if err := resumed.begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	resumed.define()
	if err := resumed.set(podmanager.Worker, 0, resumed.trainers...).Run(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	output, err := os.ReadFile(resumed.trainers[0].Log)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Fields(string(output)) {
		if found, err := filepath.EvalSymlinks(line); err != nil || found != folder {
			t.Errorf("the trainer ran in %q (%v), want %q", line, err, folder)
		}
	}
}

// A child has the environment of this process, except the settings of master run.
func TestEnvironment(t *testing.T) {
	t.Setenv("TRAINMASTER_PASSES", "7")
	t.Setenv("TZ", "UTC")
	job := newTestJob(t, Config{})
	job.define()
	for _, p := range slices.Concat(job.masters, job.servers, job.trainers) {
		if !slices.Contains(p.Env, "TZ=UTC") || slices.Contains(p.Env, "TRAINMASTER_PASSES=7") {
			t.Errorf("%s: the environment is %q", p.Name, p.Env)
		}
	}
}
