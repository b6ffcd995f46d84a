//go:build k8s

package k8s

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
)

// Variables in the environment of the process that runs the tests.
const (
	runVariable     = "K8S_RUN"         // directory of the cluster. If the caller of `go test` sets it, the tests use this cluster.
	tierVariable    = "E2E_K8S_TIER"    // the running tier. Only the process of the tests has it.
	missingVariable = "E2E_K8S_MISSING" // missing part of this machine, without which a higher tier does not run
	limitVariable   = "E2E_K8S_LIMIT"   // highest tier to run
)

// A tier is a part of the cluster. Each includes the earlier ones.
type tier int

const (
	none    tier = iota
	control      // control plane and fake nodes
	node         // containers, Services, DNS
)

var tiers = map[string]tier{"none": none, "control": control, "node": node}

func (t tier) String() string { return [...]string{"none", "control", "node"}[t] }

// image is the image of the tree under test.
const image = "localhost/trainmaster:dev"

// Main is TestMain of a package with tests on the cluster, and returns the exit code. It starts a cluster, and runs the tests in another
// process, in the network namespace of the cluster. Main removes the cluster when the tests have ended, however they ended. If Main
// itself is killed, the cluster and the tests end within seconds.
//
// If the environment variable K8S_RUN names the directory of a running cluster (scripts/k8s/start.sh), Main uses that cluster
// and leaves it running.
func Main(m *testing.M) int {
	if os.Getenv(tierVariable) != "" {
		return m.Run()
	}
	code, err := supervise()
	if err != nil {
		fmt.Fprintf(os.Stderr, "cluster: %v\n", err)
		return 1
	}
	return code
}

// supervise starts the cluster and runs the tests in a child process.
func supervise() (code int, err error) {
	signal.Ignore(syscall.SIGPIPE) // of an output that is closed: the cluster still has to be removed
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT, syscall.SIGHUP)
	defer stop()

	flag.Parse()
	if f := flag.Lookup("test.list"); f != nil && f.Value.String() != "" {
		return runTests(ctx, nil, none.String())
	}
	root, err := moduleRoot()
	if err != nil {
		return 0, err
	}
	s := supervisor{root: root, dir: os.Getenv(runVariable)}
	if err := s.find(); err != nil {
		return 0, err
	}
	if s.tier != none {
		if s.dir == "" {
			if s.dir, err = newDirectory(); err != nil {
				return 0, err
			}
			defer func() { err = errors.Join(err, s.remove()) }()
			if err := s.start(ctx); err != nil {
				return 0, err
			}
		}
		if s.tier == node {
			if err := s.loadImage(ctx); err != nil {
				return 0, err
			}
		}
	}
	return runTests(ctx, s.enter(), s.tier.String(), missingVariable+"="+s.missing, runVariable+"="+s.dir,
		"PATH="+s.bin+":"+os.Getenv("PATH"), "KUBECONFIG="+filepath.Join(s.dir, "admin.kubeconfig"))
}

// supervisor has the cluster of one run of the tests.
type supervisor struct {
	root    string // of the module
	bin     string // programs of the cluster
	dir     string // of the cluster
	tier    tier
	missing string // part of this machine, without which the next tier does not run
}

// find sets the tier that this machine can run.
func (s *supervisor) find() error {
	limit, ok := tiers[cmp.Or(os.Getenv(limitVariable), "node")]
	if !ok {
		return fmt.Errorf("%s: expected none, control or node, found %q", limitVariable, os.Getenv(limitVariable))
	}
	for _, entry := range []string{"k8s-images", "k8s"} {
		out, err := exec.Command(filepath.Join(s.root, "scripts", "cache.sh"), entry).Output()
		if err != nil {
			return fmt.Errorf("scripts/cache.sh %s: %w", entry, err)
		}
		s.bin = strings.TrimSpace(string(out))
		if _, err := os.Stat(s.bin); err != nil {
			s.missing = fmt.Sprintf("%s: expected it in the cache: %v: run `make setup-k8s`", entry, err)
			return nil
		}
	}
	s.tier = min(control, limit)
	switch missing := nodeNeeds(); {
	case limit < node:
		s.missing = fmt.Sprintf("%s=%v", limitVariable, limit)
	case missing != "":
		s.missing = missing
	default:
		s.tier = node
	}
	return nil
}

// nodeNeeds returns the part that this machine lacks for the node, or "".
func nodeNeeds() string {
	if runtime.GOOS != "linux" || os.Getuid() != 0 {
		return fmt.Sprintf("a node of Kubernetes: expected root on Linux, found user %d on %s: run the tests as root", os.Getuid(), runtime.GOOS)
	}
	for _, program := range []string{"containerd", "runc", "nft", "ip", "nsenter", "unshare", "pgrep", filepath.Join(cmp.Or(os.Getenv("CNI_BIN"), "/usr/lib/cni"), "bridge")} {
		_, err := exec.LookPath(program)
		if err != nil {
			_, err = os.Stat(filepath.Join("/usr/sbin", program))
		}
		if err != nil {
			return fmt.Sprintf("a node of Kubernetes: expected the program %s, found none: run `make setup-k8s`", program)
		}
	}
	if out, err := exec.Command("unshare", "--net", "--mount", "true").CombinedOutput(); err != nil {
		return fmt.Sprintf("a node of Kubernetes: expected the right to make namespaces, found none: %s", bytes.TrimSpace(out))
	}
	return ""
}

// newDirectory makes the directory of a cluster. The path is short: it contains sockets.
func newDirectory() (string, error) {
	parent := os.TempDir()
	if len(parent) > 40 {
		parent = "/tmp"
	}
	return os.MkdirTemp(parent, "trainmaster-k8s-")
}

func (s *supervisor) start(ctx context.Context) error {
	words := []string{"control", "kwok"}
	if s.tier == node {
		words = append(words, "node", "proxy", "dns")
	}
	return s.script(ctx, "start.sh", words...)
}

// remove ends the cluster, if it still exists.
func (s *supervisor) remove() error {
	if _, err := os.Stat(s.dir); os.IsNotExist(err) {
		return nil
	}
	return s.script(context.Background(), "stop.sh", "--clean")
}

// script runs a script of the cluster.
func (s *supervisor) script(ctx context.Context, name string, args ...string) error {
	return s.command(ctx, filepath.Join(s.root, "scripts", "k8s", name), args...)
}

// command runs a command in the checkout. With -v, it prints the output.
func (s *supervisor) command(ctx context.Context, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = s.root
	cmd.Env = append(os.Environ(), runVariable+"="+s.dir, fmt.Sprintf("K8S_OWNER=%d", os.Getpid()))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C ends it through ctx only
	out, err := newOutput(s.dir)
	if err != nil {
		return err
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out.File, out.File
	err = cmd.Run()
	said := out.text()
	if err != nil {
		return fmt.Errorf("%s: %w\n%s", filepath.Base(name), err, said)
	}
	if testing.Verbose() {
		fmt.Fprint(os.Stderr, said)
	}
	return nil
}

// output takes the output of a command. It is a file, not a pipe: a component of the cluster that the command starts inherits it, and
// the end of the command must not wait for the end of the component.
type output struct{ *os.File }

// newOutput makes an output in a directory, without a name.
func newOutput(dir string) (output, error) {
	file, err := os.CreateTemp(dir, "output-")
	if err != nil {
		return output{}, err
	}
	return output{file}, os.Remove(file.Name())
}

func (o output) text() string {
	text, err := io.ReadAll(io.NewSectionReader(o.File, 0, 1<<30))
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// loadImage builds the program of the tree under test and imports it into the node.
func (s *supervisor) loadImage(ctx context.Context) error {
	work, err := os.MkdirTemp(s.dir, "image-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	program, archive := filepath.Join(work, "master"), filepath.Join(work, "trainmaster.tar")
	for _, command := range [][]string{
		{"env", "CGO_ENABLED=0", "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", program, "./cmd/master"},
		{"go", "run", "./scripts/k8s/mkimg", "-user", "65532", archive, image, program},
		{filepath.Join(s.root, "scripts", "k8s", "ctl.sh"), "load", archive},
	} {
		if err := s.command(ctx, command[0], command[1:]...); err != nil {
			return err
		}
	}
	return nil
}

// enter returns the command that runs another one in the network namespace of the cluster.
func (s *supervisor) enter() []string {
	namespace := filepath.Join(s.dir, "netns")
	if _, err := os.Stat(namespace); s.tier == none || err != nil {
		return nil
	}
	return []string{"nsenter", "--net=" + namespace, "--"}
}

// runTests runs the tests of this program in a child process, below the command prefix, and returns their exit code.
func runTests(ctx context.Context, prefix []string, tier string, env ...string) (int, error) {
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	runtime.LockOSThread() // the kernel kills the child when this thread ends
	args := append(append(prefix, self), os.Args[1:]...)
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(append(os.Environ(), tierVariable+"="+tier), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGQUIT) } // prints the stacks
	err = cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return max(exit.ExitCode(), 1), nil
	}
	return 0, err
}

// moduleRoot returns the directory of go.mod above the working directory.
func moduleRoot() (string, error) {
	out, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("go env GOMOD: %w", err)
	}
	return filepath.Dir(strings.TrimSpace(string(out))), nil
}
