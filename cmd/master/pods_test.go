package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"trainmaster/cmd/internal/cli"
	"trainmaster/master/podmanager"
	"trainmaster/master/podmanager/kubernetes"
	"trainmaster/master/pods"
)

// writeKubeconfig writes a configuration of a cluster that does not answer, and returns its path.
func writeKubeconfig(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	text := `{apiVersion: v1, kind: Config, current-context: a, contexts: [{name: a, context: {cluster: a, user: a}}], clusters: [{name: a, cluster: {server: "http://127.0.0.1:1"}}], users: [{name: a, user: {}}]}`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// The log of missing parameter servers names the address of etcd that their pods use, which can be wrong.
func TestMissingServersNameTheEtcdOfTheirPods(t *testing.T) {
	p := podFlags{cluster: kubernetes.Config{Endpoints: []string{"mastr:2379"}}, plan: podmanager.Config{Job: "digits"}}
	want := "pods of this master, which must reach etcd at mastr:2379: kubectl logs -l trainmaster.io/job=digits,trainmaster.io/role=ps"
	if found := p.missingServers(); found != want {
		t.Errorf("found %q", found)
	}
}

// F361: the progress has the reason of pods that do not run.
func TestProgressNamesThePodsThatDoNotRun(t *testing.T) {
	runs := pods.Group{Role: podmanager.Server, Goal: 1, Running: 1, Reason: "ps-0: ended by signal 9"}
	waits := pods.Group{Role: podmanager.Worker, Goal: 3, Running: 1, Pending: 2, Reason: "j-worker-0-0: ErrImagePull"}
	for want, s := range map[string]pods.Summary{
		"": {Groups: []pods.Group{runs}},
		"1 of 3 worker pods run: j-worker-0-0: ErrImagePull": {Groups: []pods.Group{runs, waits}},
		"pods are not observed: forbidden":                   {Groups: []pods.Group{waits}, Problem: "forbidden"},
	} {
		if found := waitingPods(s); found != want {
			t.Errorf("expected %q, found %q", want, found)
		}
	}
}

// Each of these is refused at the start, before anything is opened.
func TestBadPodFlagsAreNamed(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	kubeconfig := writeKubeconfig(t)
	unknown := write("unknown.yaml", "spec: {containers: [{name: main, imag: x}]}")
	for _, c := range []struct {
		args, want string
		outside    bool // without KUBECONFIG
	}{
		{args: "--workers 2", want: "expected it in a pod with a service account, or with --need-pod-manager and KUBECONFIG"},
		{args: "--worker-image x", want: "expected --workers, or --need-pod-manager"},
		{args: "--need-pod-manager", want: "expected --workers or --ps"},
		{args: "--need-pod-manager=false --workers 2", want: "expected none with --need-pod-manager=false"},
		{args: "--need-pod-manager --workers 2", want: "expected a pod with a service account, or KUBECONFIG, found neither", outside: true},
		{args: "--need-pod-manager --workers 3:2", want: "expected MIN:MAX with MIN at most MAX, found MIN 3 and MAX 2"},
		{args: "--need-pod-manager --workers 0", want: "expected N or MIN:MAX"},
		{args: "--need-pod-manager --workers two", want: "expected N or MIN:MAX"},
		{args: "--need-pod-manager --workers 2 --job A_b", want: "expected 1 to 40 lower-case letters"},
		{args: "--need-pod-manager --workers 2", want: "worker-image"},
		{args: "--need-pod-manager --workers 2 --worker-template " + unknown, want: `unknown field "spec.containers[0].imag"`},
		{args: "--need-pod-manager --workers 2 --worker-command 'a", want: "expected an end of each quote"},
		{args: "--need-pod-manager --workers 2 --worker-resources cpu", want: "expected NAME=QUANTITY"},
		{args: "--need-pod-manager --workers 2 --max-memory x", want: "expected a quantity such as 8Gi"},
		{args: "--need-pod-manager --workers 2 --oom-memory-factor 0.5", want: "oom-memory-factor: expected 1 to 100"},
		{args: "--need-pod-manager --workers 2 --max-relaunch -1", want: "max-relaunch: expected 0 or more"},
		{args: "--need-pod-manager --workers 2 --node-lost-after 0s", want: "expected at least 1s"},
		{args: "--need-pod-manager --workers 2 --kube-qps 0", want: "expected 1 to 10000"},
		{args: "--need-pod-manager --workers 2 --clean-pods x", want: "clean-pods"},
		{args: "--need-pod-manager --workers 2 --group-size 0", want: "expected 1 or more"},
		{args: "--need-pod-manager --ps 2 --group-size 2", want: "expected --workers with the number of groups"},
		{args: "--need-pod-manager --workers 2 --group-size 2", want: "master trainer trains in one pod"},
		{args: "--need-pod-manager --workers 2 --group-size 2 --worker-command a --ring 4", want: "expected 1 with a ring"},
		{args: "--need-pod-manager --workers 2 --group-size 2 --worker-command a --distribution-strategy allreduce", want: "expected 1 with a ring"},
		{args: "--need-pod-manager --workers 700 --group-size 3 --worker-command a", want: "expected at most 2000 pods with the parameter servers, found 2100"},
		{args: "--group-size 2", want: "expected --workers, or --need-pod-manager"},
	} {
		t.Setenv("KUBECONFIG", kubeconfig)
		if c.outside {
			t.Setenv("KUBECONFIG", "")
		}
		root := rootCommand()
		root.SetArgs(append(strings.Split(c.args, " "), "--data-dir", t.TempDir()))
		err := root.ExecuteContext(t.Context())
		if err == nil || !strings.Contains(err.Error(), c.want) || cli.ExitCode(err) != cli.ExitUsage {
			t.Errorf("%s: expected exit code 2 and %q, found %v", c.args, c.want, err)
		}
	}
}

func TestCommandIsSplitAsInAShell(t *testing.T) {
	for text, want := range map[string][]string{
		"master trainer":           {"master", "trainer"},
		`a --data '/d/*' "x y"\ z`: {"a", "--data", "/d/*", "x y z"},
		`a "" '\' "\""`:            {"a", "", `\`, `"`},
	} {
		if got, err := splitWords(text); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: expected %q, found %q, %v", text, want, got, err)
		}
	}
}

func TestEndpointOfLoopbackIsNotForPods(t *testing.T) {
	for endpoint, want := range map[string]bool{"127.0.0.1:2379": true, "http://localhost:2379": true, "http://[::1]:2379": true, "http://10.0.0.1:2379": false, "etcd:2379": false} {
		if isLoopback(endpoint) != want {
			t.Errorf("%s: expected %v", endpoint, want)
		}
	}
}
