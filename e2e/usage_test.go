package e2e

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// Exit codes of docs/reference.md.
const (
	exitFailed = 1
	exitUsage  = 2
	exitStore  = 3

	exitInterrupted = 130
)

// Every command refuses an unknown flag and names its --help.
func TestUnknownFlags(t *testing.T) {
	t.Parallel()
	commands := commandLines(t)
	if len(commands) < 15 {
		t.Fatalf("found %d commands with --help, expected at least 15: %v", len(commands), commands)
	}
	for _, c := range commands {
		name := strings.Join(append([]string{"master"}, c.words...), " ")
		o := run(t, t.TempDir(), append(slices.Clone(c.words), "--nonsense")...)
		o.wants(t, exitUsage, "unknown flag: --nonsense", "See '"+name+" --help'.")
	}
}

// closedAddr returns an address that refuses connections.
func closedAddr(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }() // only reserves a port number
	return l.Addr().String()
}

// silentAddr returns an address that accepts connections and does not answer.
func silentAddr(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() }) // no connection is read
	return l.Addr().String()
}

// An invalid setting is refused with an error that names the expected value, the found value and the action.
func TestBadSettings(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("no directory\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	taken := silentAddr(t)
	away := closedAddr(t)
	daemon := func(args ...string) []string { return append([]string{"--listen", "127.0.0.1:0"}, args...) }
	for _, c := range []struct {
		name string
		args []string
		code int
		says []string
	}{
		{"invalid number", daemon("--passes", "many"), exitUsage, []string{`bad value "many" for --passes`}},
		{"invalid choice", daemon("--pass-mode", "round"), exitUsage, []string{`"round"`, "--pass-mode", "expected one of barrier, rolling"}},
		{"negative number of passes", daemon("--passes", "-1"), exitUsage, []string{"--passes: expected 0 (unlimited) or more, found -1"}},
		{"lease too short", daemon("--lease-ttl", "10ms"), exitUsage, []string{"--lease-ttl", "expected at least 1s"}},
		{"session too short", daemon("--session-ttl", "0s"), exitUsage, []string{"--session-ttl", "expected at least 2s"}},
		{"contradictory timeouts", daemon("--task-timeout-min", "2h"), exitUsage, []string{"--task-timeout-min: expected at most task-timeout-max (1h0m0s), found 2h0m0s"}},
		{"negative number of servers", daemon("--ps", "-1"), exitUsage, []string{"--ps", "to 1024"}},
		{"invalid job name", daemon("--job", "a/b", "--endpoints", away), exitUsage, []string{"--job", `"a/b"`, "letters, digits"}},
		{"missing CA file", daemon("--cacert", "/nowhere.pem", "--endpoints", away), exitUsage, []string{"--cacert", "/nowhere.pem", "expected a PEM file"}},
		{"certificate without key", daemon("--cert", file, "--endpoints", away), exitUsage, []string{"cert", "key", "missing"}},
		{"missing config file", daemon("--config", "nowhere.yaml"), exitUsage, []string{"nowhere.yaml", "no such file"}},

		{"address without a port", []string{"--listen", "localhost"}, exitUsage, []string{`--listen "localhost": expected host:port`}},
		{"port out of range", []string{"--listen", "127.0.0.1:99999"}, exitUsage, []string{"--listen", "99999", "expected host:port"}},
		{"port in use", []string{"--listen", taken}, exitFailed, []string{"--listen " + taken, "in use", "choose another one, or port 0"}},
		{"HTTP port in use", []string{"--listen", "127.0.0.1:0", "--http", taken}, exitFailed, []string{"--http " + taken, "in use", "port 0"}},
		{"address of another machine", []string{"--listen", "192.0.2.1:8080"}, exitFailed, []string{"--listen 192.0.2.1:8080", "expected an address of this machine"}},
		{"unspecified address", []string{"--listen", "0.0.0.0:0"}, exitUsage, []string{"--advertise"}},
		{"port of a server in use", []string{"pserver", "--listen", taken, "--endpoints", away}, exitFailed, []string{"--listen " + taken, "in use", "port 0"}},

		{"data directory below a file", daemon("--data-dir", filepath.Join(file, "etcd")), exitFailed, []string{filepath.Join(file, "etcd"), "--data-dir", "can be written"}},
		{"run directory below a file", []string{"run", "--dir", filepath.Join(file, "runs")}, exitFailed, []string{"--dir", filepath.Join(file, "runs"), "expected a directory that can be written"}},
		{"output below a file", []string{"recordio", "convert", file, filepath.Join(file, "x")}, exitFailed, []string{file}},

		{"endpoints without a port", daemon("--endpoints", "localhost"), exitUsage, []string{`--endpoints: "localhost": expected host:port`}},
		{"endpoints with a wrong scheme", daemon("--endpoints", "etcd://127.0.0.1:2379"), exitUsage, []string{"--endpoints", "expected http:// or https://", "etcd://"}},
		{"empty endpoint", daemon("--endpoints", away+",,"+away), exitUsage, []string{`--endpoints: "": expected host:port`}},
		{"endpoints of a trainer", []string{"trainer", "--data", file, "--endpoints", "localhost"}, exitUsage, []string{`--endpoints: "localhost": expected host:port`}},
		{"endpoints of a server", []string{"pserver", "--endpoints", "localhost"}, exitUsage, []string{`--endpoints: "localhost": expected host:port`}},
		{"endpoints of status", []string{"status", "--endpoints", "localhost"}, exitUsage, []string{`--endpoints: "localhost": expected host:port`}},

		{"no etcd for a master", daemon("--endpoints", away, "--store-timeout", "1s"), exitStore, []string{"etcd is unreachable", away, "refused", "start etcd there, or name other --endpoints"}},
		{"no etcd for a trainer", []string{"trainer", "--data", file, "--endpoints", away, "--store-timeout", "1s"}, exitStore, []string{"etcd is unreachable", away, "--endpoints"}},
		{"no etcd for a server", []string{"pserver", "--endpoints", away, "--store-timeout", "1s"}, exitStore, []string{"etcd is unreachable", away, "--endpoints"}},
		{"no etcd for status", []string{"status", "--endpoints", away}, exitStore, []string{"etcd is unreachable", away, "--endpoints"}},
		{"no etcd for queues", []string{"queues", "--endpoints", away}, exitStore, []string{"etcd is unreachable", away}},
		{"no etcd for verify", []string{"verify", "--endpoints", away}, exitStore, []string{"etcd is unreachable", away}},
		{"another process instead of etcd", daemon("--endpoints", taken, "--store-timeout", "1s"), exitStore, []string{"etcd is unreachable", taken, "a process listens there but did not answer in"}},

		{"prediction without a directory", []string{"trainer", "--endpoints", away, "--predict-model", file}, exitUsage, []string{"--predict-model: expected --predict-out"}},
		{"prediction and training data", []string{"trainer", "--endpoints", away, "--predict-model", file, "--predict-out", filepath.Dir(file), "--data", file}, exitUsage, []string{"--predict-model: expected no --data"}},
		{"prediction into a file", []string{"trainer", "--endpoints", away, "--predict-out", file}, exitUsage, []string{"--predict-out", "expected a directory, found a file"}},
		{"prediction by no model", []string{"trainer", "--addr", away, "--predict-model", file, "--predict-out", t.TempDir()}, exitUsage, []string{"--predict-model: load the model"}},
		{"dataset without a name", []string{"--dataset", file}, exitUsage, []string{"--dataset", "expected NAME=PATH[,weight=W][,passes=N]"}},
		{"trainer without a master", []string{"trainer", "--data", file}, exitUsage, []string{"--endpoints", "--addr", "--servers"}},
		{"unquoted glob", []string{"trainer", "--endpoints", away, "--data", file, file}, exitUsage, []string{"arguments after the flags", file, "quoted"}},
		{"negative batch size", []string{"trainer", "--endpoints", away, "--data", file, "--batch-size", "-1"}, exitUsage, []string{"--batch-size", `"-1"`, "expected 0"}},
		{"invalid learning rate", []string{"trainer", "--endpoints", away, "--data", file, "--learning-rate", "NaN"}, exitUsage, []string{"--learning-rate", `"NaN"`, "expected 0"}},
		{"flag of another optimizer", []string{"trainer", "--endpoints", away, "--data", file, "--optimizer", "adam", "--momentum", "0.9"}, exitUsage, []string{"--momentum", `"0.9"`, "no value without --optimizer momentum or nesterov"}},
		{"unknown optimizer", []string{"run", "--optimizer", "lion"}, exitUsage, []string{"--optimizer", `"lion"`, "expected one of sgd, momentum"}},
		{"invalid clip norm of a run", []string{"run", "--clip-norm", "-1"}, exitUsage, []string{"--clip-norm", `"-1"`, "expected 0"}},
		{"schedule without steps", []string{"run", "--optimizer", "adam", "--schedule", "cosine"}, exitUsage, []string{"--schedule-steps", `"0"`, "more than the steps of the warm-up"}},
		{"master address without a port", []string{"trainer", "--addr", "localhost", "--servers", away, "--data", file}, exitUsage, []string{"--addr", `"localhost"`, "expected host:port"}},
		{"invalid checkpoint interval", daemon("--checkpoint-every", "0s"), exitUsage, []string{"--checkpoint-every", `"0s"`, "a time such as 60s"}},
		{"checkpoint steps of an asynchronous job", daemon("--checkpoint-every", "9steps"), exitUsage, []string{"checkpoint-every", "synchronous mode only"}},
		{"no master for status", []string{"status", "--addr", away}, exitFailed, []string{"no master answers at " + away, "start a master with"}},
		{"run without trainers", []string{"run", "--trainers", "0"}, exitUsage, []string{"expected at least 1"}},
		{"run with a negative number of passes", []string{"run", "--passes", "-3"}, exitUsage, []string{"--passes", "-3", "expected 0"}},
		{"MNIST without data", []string{"run", "--dataset", "mnist"}, exitUsage, []string{"--dataset mnist: expected --data", "make data"}},
		{"MNIST data missing", []string{"run", "--dataset", "mnist", "--data", dir}, exitFailed, []string{"train-images-idx3-ubyte", "make data"}},
		{"unknown command", []string{"rum"}, exitUsage, []string{`unknown command "rum"`, "run", "See 'master --help'."}},
		{"missing file", []string{"recordio", "verify", filepath.Join(dir, "none")}, exitFailed, []string{filepath.Join(dir, "none"), "no such file"}},
		{"file in another format", []string{"recordio", "stat", file}, exitFailed, []string{file + ": byte 0"}},
		{"command without files", []string{"recordio", "stat"}, exitUsage, []string{"FILE"}},
		{"directory without a job", []string{"verify", "--data-dir", dir}, exitUsage, []string{"--data-dir", dir, "--endpoints"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			o := run(t, t.TempDir(), c.args...)
			o.wants(t, c.code, c.says...)
			if c.code == exitUsage && !strings.Contains(o.stderr, "--help'.") {
				t.Errorf("usage error: expected a reference to --help, found: %s", o.stderr)
			}
			if c.code == exitUsage && o.stdout != "" {
				t.Errorf("expected no standard output, found: %s", o.stdout)
			}
		})
	}
}

// Commands name a directory without write permission. For root the test uses /proc, where no user can create files.
func TestUnwritableDirectories(t *testing.T) {
	t.Parallel()
	folder := filepath.Join(t.TempDir(), "locked")
	if err := os.Mkdir(folder, 0o500); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		folder = "/proc/self"
	}
	inside := filepath.Join(folder, "inside")
	run(t, t.TempDir(), "--listen", "127.0.0.1:0", "--data-dir", inside).wants(t, exitFailed, inside, "--data-dir", "can be written")
	run(t, t.TempDir(), "run", "--dir", inside).wants(t, exitFailed, "--dir", inside, "expected a directory that can be written")

	j := newJob(t)
	master := j.master("--ps", "1")
	j.awaitLeader(0)
	server := start(t, "pserver", j.dir, j.in("pserver", "--checkpoint-dir", inside)...)
	server.wantExit(exitFailed)
	if text := server.log(); !strings.Contains(text, inside) || !strings.Contains(text, "--checkpoint-dir") {
		t.Errorf("parameter server: expected the directory and its flag, found: %s", text)
	}
	j.server()
	for _, flag := range []string{"--journal", "--save-model"} {
		file := filepath.Join(inside, "file")
		trainer := j.trainer("a", flag, file)
		trainer.wantExit(exitFailed)
		if text := trainer.log(); !strings.Contains(text, file) || !strings.Contains(text, "can be written") && !strings.Contains(text, "a writable directory") {
			t.Errorf("trainer with %s: expected the file, found: %s", flag, text)
		}
	}
	master.signal(syscall.SIGTERM)
	master.wantExit(0)
}

// F20: a second master with another immutable setting is refused, although the first master leads. A master with the same
// settings becomes a standby.
func TestMasterWithOtherSettingsIsRefused(t *testing.T) {
	t.Parallel()
	j := newJob(t)
	first := j.master("--seed", "7", "--ps", "2")
	j.awaitLeader(0)
	for _, c := range []struct {
		args []string
		says []string
	}{
		{[]string{"--seed", "8", "--ps", "2"}, []string{"seed", `"7"`, `"8"`, "--job"}},
		{[]string{"--seed", "7", "--ps", "2", "--shuffle=false"}, []string{"shuffle", `"true"`, `"false"`}},
		{[]string{"--seed", "7", "--ps", "2", "--pass-mode", "rolling"}, []string{"pass-mode", `"barrier"`, `"rolling"`}},
		{[]string{"--seed", "7", "--ps", "3"}, []string{"--ps", "expected 2", "found 3"}},
		{[]string{"--seed", "7"}, []string{"--ps", "expected 2", "found 0"}},
	} {
		o := run(t, j.dir, append(j.in("--listen", "127.0.0.1:0", "--chunks-per-task", "1"), c.args...)...)
		o.wants(t, exitUsage, c.says...)
	}
	second := j.master("--seed", "7", "--ps", "2")
	second.awaitLog("waiting for the lock")
	for _, p := range []*process{second, first} {
		p.signal(syscall.SIGTERM)
		p.wantExit(0)
	}
}
