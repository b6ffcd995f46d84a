package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"trainmaster/local/drill"
	"trainmaster/master/podmanager/processes"
	"trainmaster/pserver/optimizer"
	"trainmaster/recordio"
	"trainmaster/trainer/model"
)

func TestNew(t *testing.T) {
	job, err := New(Config{Binary: "/bin/master", Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	if c := job.config; c.Model != model.Softmax || c.Servers != 2 || c.Trainers != 3 || c.Passes < 1 || c.CheckpointEvery != 2*time.Second {
		t.Errorf("the defaults are %+v", c)
	}
	for name, tt := range map[string]struct {
		config Config
		words  string
	}{
		"no program":               {Config{Dir: "d"}, "Binary"},
		"no directory":             {Config{Binary: "b"}, "Dir"},
		"fewer servers than none":  {Config{Binary: "b", Dir: "d", Servers: -1}, "found 1, -1, 3 and 0"},
		"fewer trainers than none": {Config{Binary: "b", Dir: "d", Trainers: -1}, "found 1, 2, -1 and 0"},
		"fewer passes than none":   {Config{Binary: "b", Dir: "d", Passes: -2}, "found 1, 2, 3 and -2"},
		"what a trainer refuses":   {Config{Binary: "b", Dir: "d", Dataset: model.Flights, Optimizer: optimizer.Config{ClipNorm: 1}}, "clip-norm"},
		"unknown model":            {Config{Binary: "b", Dir: "d", Model: "oracle"}, "oracle"},
	} {
		if _, err := New(tt.config); err == nil || !strings.Contains(err.Error(), tt.words) {
			t.Errorf("%s: expected an error with %q, found %v", name, tt.words, err)
		}
	}
}

// newTestJob is a job on the digits with its data prepared.
func newTestJob(t *testing.T, c Config) *Job {
	t.Helper()
	c.Binary, c.Dir, c.Log = "/bin/master", t.TempDir(), silent()
	job, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(job.path("data"), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := job.prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	return job
}

// Every run holds the same fifth of the digits out, whatever its seed is, and trains on the
// rest.
func TestSplitOfTheDigits(t *testing.T) {
	read := func(job *Job) (train, test []string) {
		for paths, into := range map[*[]string]*[]string{&job.data.Train.Paths: &train, &job.data.Test.Paths: &test} {
			for record, err := range records(*paths) {
				if err != nil {
					t.Fatal(err)
				}
				*into = append(*into, string(record))
			}
			slices.Sort(*into)
		}
		return train, test
	}
	first := newTestJob(t, Config{})
	train, test := read(first)
	if len(train)+len(test) != 1797 || len(test) < 300 || len(test) > 420 {
		t.Errorf("%d records to train on and %d held out, of 1797", len(train), len(test))
	}
	if n := len(first.data.Train.Paths); n != digitsShards {
		t.Errorf("%d files to train on, want %d", n, digitsShards)
	}
	for _, record := range test {
		if _, both := slices.BinarySearch(train, record); both {
			t.Fatal("a record is in both parts")
		}
	}
	if _, again := read(newTestJob(t, Config{Seed: 7})); !slices.Equal(again, test) {
		t.Error("with another seed other records are held out")
	}
}

// flagsOf reads --name value pairs.
func flagsOf(t *testing.T, p processes.Process) map[string][]string {
	t.Helper()
	flags := map[string][]string{}
	for i, arg := range p.Args {
		if name, ok := strings.CutPrefix(arg, "--"); ok {
			value := ""
			if i+1 < len(p.Args) && !strings.HasPrefix(p.Args[i+1], "--") {
				value = p.Args[i+1]
			}
			flags[name] = append(flags[name], value)
		}
	}
	return flags
}

// The arguments of the processes follow the configuration.
func TestArguments(t *testing.T) {
	job := newTestJob(t, Config{Servers: 4, Trainers: 5, Passes: 6, Sync: true, Seed: 7, Model: model.MLP, CheckpointEvery: 3 * time.Second, Journal: true})
	job.endpoint = "http://127.0.0.1:1"
	job.define()
	if len(job.servers) != 4 || len(job.trainers) != 5 {
		t.Fatalf("%d servers and %d trainers", len(job.servers), len(job.trainers))
	}
	want := func(p processes.Process, command string, flags map[string]string) {
		t.Helper()
		found := flagsOf(t, p)
		if p.Path != "/bin/master" || command != "" && p.Args[0] != command {
			t.Errorf("%s runs %s %q", p.Name, p.Path, p.Args)
		}
		if p.Log != job.path("logs", p.Name+".log") {
			t.Errorf("%s logs into %s", p.Name, p.Log)
		}
		flags["endpoints"] = job.endpoint
		for name, value := range flags {
			if !slices.Equal(found[name], []string{value}) {
				t.Errorf("%s: --%s is %q, want %q", p.Name, name, found[name], value)
			}
		}
	}
	want(job.masters[0], "", map[string]string{
		"ps": "4", "trainers": "5", "passes": "6", "update-mode": "sync", "checkpoint-every": "3s", "seed": "7", "listen": "127.0.0.1:0", "http": "", "data-roots": job.path("data"), "linger": "10m",
	})
	names := map[string]bool{}
	for i, p := range job.servers {
		names[p.Name] = true
		want(p, "pserver", map[string]string{"checkpoint-dir": job.path("checkpoints"), "listen": "127.0.0.1:0"})
		if p.Name != fmt.Sprintf("pserver-%d", i) {
			t.Errorf("server %d is %s", i, p.Name)
		}
	}
	for _, p := range job.trainers {
		names[p.Name] = true
		want(p, "trainer", map[string]string{
			"id": p.Name, "model": model.MLP, "model-seed": "7", "journal": job.path("journal.jsonl"), "save-model": job.modelPath(),
		})
		if data := flagsOf(t, p)["data"]; !slices.Equal(data, job.data.Train.Paths) {
			t.Errorf("%s trains on %q", p.Name, data)
		}
		if strings.Contains(strings.Join(p.Args, " "), job.data.Test.Paths[0]) {
			t.Errorf("%s has the held-out records in its arguments", p.Name)
		}
	}
	if len(names) != 9 {
		t.Errorf("the names are %v: two processes share a log", names)
	}

	job = newTestJob(t, Config{})
	job.define()
	want(job.masters[0], "", map[string]string{"update-mode": "async"})
	if _, told := flagsOf(t, job.trainers[0])["journal"]; told {
		t.Error("unexpected journal")
	}
}

// staged is a job whose processes are test children that record their events in a file.
func staged(t *testing.T) (job *Job, file string, child func(args ...string) []processes.Process) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "notes")
	return &Job{config: Config{Log: silent()}}, file, func(args ...string) []processes.Process {
		p := runs(t, slices.Insert(slices.Clone(args), 1, file)...)
		if p.Name = args[1]; args[0] == "ends" {
			p.Name = args[2]
		}
		return []processes.Process{p}
	}
}

// index returns the index of a line in the recorded events.
func index(t *testing.T, file, line string) int {
	t.Helper()
	i := slices.Index(noted(file), line)
	if i < 0 {
		t.Fatalf("no event %q: %q", line, noted(file))
	}
	return i
}

// The run ends when the master exits: the run waits for trainers that exit, and then
// the servers are stopped.
func TestMasterEndsTheRun(t *testing.T) {
	job, file, child := staged(t)
	job.masters = child("ends", "server_up", "master", "0")
	job.trainers = child("ends", "master_ended", "trainer", "0")
	job.servers = child("stays", "server")
	watched := make(chan struct{})
	job.endpoint = "the endpoint"
	err := job.supervise(t.Context(), func(ctx context.Context, endpoint string) {
		defer close(watched)
		if endpoint != "the endpoint" {
			t.Errorf("it watches %q", endpoint)
		}
		<-ctx.Done() // as progress does, until the job ends
	})
	if err != nil {
		t.Error(err)
	}
	<-watched
	if m, tr, s := index(t, file, "master_ended"), index(t, file, "trainer_ended"), index(t, file, "server_terminated"); m > tr || tr > s {
		t.Errorf("expected the master, the trainer and the server to end in this order, found %q", noted(file))
	}
}

// A run that is interrupted ends the trainers first, then the servers, which ask the master for their last set, the master last.
func TestInterruptedRun(t *testing.T) {
	job, file, child := staged(t)
	job.masters = child("stays", "master", "300")
	job.trainers = slices.Concat(child("stays", "a", "300"), child("stays", "b", "300"))
	job.servers = child("stays", "server")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- job.supervise(ctx, nil) }()
	await(t, "all are up", func() bool { return len(noted(file)) == 4 })
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the run ended with %v", err)
	}
	trainers := max(index(t, file, "a_terminated"), index(t, file, "b_terminated"))
	if m, s := index(t, file, "master_terminated"), index(t, file, "server_terminated"); trainers > s || s > m {
		t.Errorf("expected trainers, server and master to end in this order, found %q", noted(file))
	}
}

// A run that fails while the failure of etcd is being noted is no success.
func TestRunFailsWithTheFailureOfEtcd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failure := errors.New("the disk is full")
		ctx, stop := context.WithCancelCause(t.Context())
		var job Job
		job.storeFailed.Store(true)
		time.AfterFunc(time.Second, func() { stop(failure) })
		if err := job.reason(ctx, errors.New("read the state")); !errors.Is(err, failure) {
			t.Errorf("found %v, expected %v", err, failure)
		}
		if err := job.reason(ctx, nil); err != nil {
			t.Errorf("a run that was complete before ended with %v", err)
		}
	})
}

// A process that cannot run ends the run with its reason, whichever it is, and nothing stays
// behind.
func TestProcessThatCannotRun(t *testing.T) {
	for _, broken := range []string{"master", "trainer", "server"} {
		t.Run(broken, func(t *testing.T) {
			job, file, child := staged(t)
			job.masters, job.trainers, job.servers = child("stays", "master"), child("stays", "trainer"), child("stays", "server")
			failing := &map[string][]processes.Process{"master": job.masters, "trainer": job.trainers, "server": job.servers}[broken][0]
			after := map[string]string{"master": "server_up", "trainer": "master_up", "server": "trainer_up"}[broken]
			failing.Args = []string{"child", "ends", file, after, broken, "2"}
			var err error
			if job.register, err = drill.NewRegister(filepath.Dir(file), drill.Scene{}); err != nil {
				t.Fatal(err)
			}
			err = job.supervise(t.Context(), nil)
			if err == nil || !strings.Contains(err.Error(), broken+": exit code 2") {
				t.Errorf("the run ended with %v", err)
			}
			scene, err := drill.ReadScene(filepath.Dir(file))
			if err != nil || len(scene.Processes) > 0 {
				t.Errorf("processes that run after the end: %+v, %v", scene, err)
			}
		})
	}
}

func TestOpenEither(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{"plain": "p", "both": "b", "both.gz": "z", "packed.gz": "z"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]string{"plain": "plain", "both": "both", "packed": "packed.gz"} {
		f, err := openEither(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if found := filepath.Base(f.Name()); found != want {
			t.Errorf("%s: opened %s, want %s", name, found, want)
		}
		_ = f.Close()
	}
	if _, err := openEither(filepath.Join(dir, "neither")); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "make data") {
		t.Errorf("found %v", err)
	}
}

// Records of several files come one after another, up to the first error.
func TestRecords(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, records ...string) string {
		path := filepath.Join(dir, name)
		f, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		w := recordio.NewWriter(f, recordio.WriterOptions{})
		for _, r := range records {
			if err := w.Write([]byte(r)); err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(w.Close(), f.Close()); err != nil {
			t.Fatal(err)
		}
		return path
	}
	paths := []string{write("one", "a", "b"), filepath.Join(dir, "nothing"), write("two", "c")}
	var found []string
	var failed error
	for record, err := range records(paths) {
		if err != nil {
			failed = err
			break
		}
		found = append(found, string(record))
	}
	if !slices.Equal(found, []string{"a", "b"}) || !errors.Is(failed, os.ErrNotExist) {
		t.Errorf("read %q, then %v", found, failed)
	}
	found = nil
	for record := range records([]string{paths[0], paths[2]}) {
		if found = append(found, string(record)); len(found) == 2 {
			break
		}
	}
	if !slices.Equal(found, []string{"a", "b"}) {
		t.Errorf("read %q", found)
	}
}
