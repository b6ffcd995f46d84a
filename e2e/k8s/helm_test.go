//go:build k8s

package k8s

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// helm returns a function that runs Helm with the chart. Without Helm in the cache, the test is skipped.
func (e *Env) helm(t *testing.T) func(args ...string) (string, error) {
	t.Helper()
	entry, err := e.run("", filepath.Join(e.root, "scripts", "cache.sh"), "k8s-helm")
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(strings.TrimSpace(entry), "helm")
	if _, err := os.Stat(program); err != nil {
		const missing = "helm: expected it in the cache, found none: run `make setup-k8s`"
		if os.Getenv("REQUIRE") == "all" {
			t.Fatal(missing)
		}
		t.Skip(missing)
	}
	state := t.TempDir()
	return func(args ...string) (string, error) {
		return e.run("", "env", append([]string{"HELM_CACHE_HOME=" + state, "HELM_CONFIG_HOME=" + state, "HELM_DATA_HOME=" + state, program}, args...)...)
	}
}

func (e *Env) chart() string { return filepath.Join(e.root, "deploy", "helm", "trainmaster") }

// The chart has the objects of deploy/operator, and its values are checked.
func TestChartIsRendered(t *testing.T) {
	t.Parallel()
	c := ControlPlane(t)
	helm := c.helm(t)
	if out, err := helm("lint", "--strict", c.chart()); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	template := func(args ...string) string {
		t.Helper()
		out, err := helm(append([]string{"template", "trainmaster", c.chart(), "--namespace", system}, args...)...)
		if err != nil {
			t.Error(err)
		}
		return out
	}
	rules := func(text string) string {
		_, text, _ = strings.Cut(text, "kind: ClusterRole\n")
		_, text, _ = strings.Cut(text, "rules:\n")
		text, _, _ = strings.Cut(text, "\n---")
		return regexp.MustCompile(`\s*#.*`).ReplaceAllString(text, "")
	}
	plain, ours := rules(template()), rules(c.Kubectl(t, "kustomize", filepath.Join(c.root, "deploy", "operator")))
	if norm := regexp.MustCompile(`[\s\[\],"-]+`); norm.ReplaceAllString(ours, " ") == "" || len(strings.Fields(norm.ReplaceAllString(plain, " "))) != len(strings.Fields(norm.ReplaceAllString(ours, " "))) {
		t.Errorf("rules of the ClusterRole: the chart has\n%s\nand deploy/operator has\n%s", plain, ours)
	}
	some := template("--set", "namespaces={a,b},replicas=2,podMonitor=true")
	for _, want := range []string{"--namespaces=a,b", "kind: PodDisruptionBudget", "kind: PodMonitor", "namespace: a\n", "namespace: b\n"} {
		if !strings.Contains(some, want) {
			t.Errorf("expected %q in\n%s", want, some)
		}
	}
	if strings.Contains(some, "kind: ClusterRoleBinding") {
		t.Error("with namespaces: expected no ClusterRoleBinding")
	}
	for value, want := range map[string]string{"replicas=0": "replicas", "imagge.tag=x": "imagge", "job.spec.workers=1": "job.name: expected a name"} {
		if _, err := helm("template", c.chart(), "--set", value); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("--set %s: expected an error with %q, found %v", value, want, err)
		}
	}
}

// The chart installs a controller for one namespace, and a job that trains there.
func TestChartTrainsTheDigits(t *testing.T) {
	t.Parallel()
	c := Cluster(t)
	c.crd(t)
	helm := c.helm(t)
	ns := c.Namespace(t)
	c.claim(t, ns)
	values := filepath.Join(t.TempDir(), "values.yaml")
	text := "namespaces: [" + ns + "]\njob:\n  name: digits\n  spec:\n    storage: {claimName: digits}\n    data: {sample: digits}\n    passes: 5\n    workers: 2\n"
	if err := os.WriteFile(values, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	release := "tm-" + ns
	if out, err := helm("install", release, c.chart(), "--namespace", ns, "--values", values, "--skip-crds", "--wait", "--timeout", "90s"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	c.Kubectl(t, "-n", ns, "wait", "--for=condition=Complete", "trainingjob/digits", "--timeout=300s")
	if out, err := helm("uninstall", release, "--namespace", ns, "--wait"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if out, err := c.Try("get", "clusterrole/"+release+"-operator"); err == nil {
		t.Errorf("after helm uninstall: found %s", out)
	}
}
