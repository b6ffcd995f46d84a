//go:build k8s

package k8s

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// manifest returns a file of testdata with placeholders replaced.
func manifest(t *testing.T, name string, replace ...string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return strings.NewReplacer(replace...).Replace(string(text))
}

// put applies a file of testdata. @NS@ is the namespace.
func (e *Env) put(t *testing.T, namespace, name string, replace ...string) {
	t.Helper()
	e.Apply(t, namespace, manifest(t, name, append(replace, "@NS@", namespace)...))
}

// refused requires an error of kubectl with a text.
func (e *Env) refused(t *testing.T, want string, args ...string) {
	t.Helper()
	if out, err := e.Try(args...); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("kubectl %v: expected a refusal with %q, found %v %s", args, want, err, out)
	}
}

func TestCustomResourceIsValidatedAndScaled(t *testing.T) {
	t.Parallel()
	c := ControlPlane(t)
	ns := c.Namespace(t)
	c.put(t, ns, "crd.yaml")
	t.Cleanup(func() { c.Kubectl(t, "delete", "crd", "gadgets.check.example.com") })
	c.Kubectl(t, "wait", "--for=condition=Established", "--timeout=180s", "crd/gadgets.check.example.com")
	Until(t, 90*time.Second, func() error { // the API of the new resource appears a moment later
		_, err := c.run(manifest(t, "gadget.yaml"), "kubectl", "-n", ns, "apply", "-f", "-")
		return err
	})
	c.refused(t, "minReplicas must not exceed", "-n", ns, "patch", "gadget", "g", "--type=merge", "-p", `{"spec":{"minReplicas":9}}`)
	c.refused(t, "model is immutable", "-n", ns, "patch", "gadget", "g", "--type=merge", "-p", `{"spec":{"model":"other"}}`)
	c.Kubectl(t, "-n", ns, "scale", "gadget/g", "--replicas=3")
	c.Await(t, 0, ns, "gadget/g", "{.spec.replicas}", "3")
	c.refused(t, "replicas must not exceed", "-n", ns, "scale", "gadget/g", "--replicas=5")
	c.Kubectl(t, "-n", ns, "patch", "gadget", "g", "--subresource=status", "--type=merge", "-p", `{"status":{"replicas":3,"selector":"app=g"}}`)
	scale := c.Kubectl(t, "get", "--raw", "/apis/check.example.com/v1/namespaces/"+ns+"/gadgets/g/scale")
	if want := `"status":{"replicas":3,"selector":"app=g"}`; !strings.Contains(scale, want) {
		t.Errorf("scale subresource: expected %s, found %s", want, scale)
	}
}

func TestServerSideApplyNamesTheConflictingManager(t *testing.T) {
	t.Parallel()
	c := ControlPlane(t)
	ns := c.Namespace(t)
	apply := func(text, manager string, more ...string) error {
		_, err := c.run(text, "kubectl", append([]string{"-n", ns, "apply", "--server-side", "--field-manager=" + manager, "-f", "-"}, more...)...)
		return err
	}
	const other = `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"applied"},"data":{"b":"2","c":"2"}}`
	if err := apply(manifest(t, "apply.yaml"), "first"); err != nil {
		t.Fatal(err)
	}
	if err := apply(other, "second"); err == nil || !strings.Contains(err.Error(), `conflict with "first": .data.b`) {
		t.Errorf("apply of another manager: expected a conflict, found %v", err)
	}
	if err := apply(other, "second", "--force-conflicts"); err != nil {
		t.Fatal(err)
	}
	c.Await(t, 0, ns, "cm/applied", "{.data.a}{.data.b}{.data.c}", "122")
	if err := apply(strings.Replace(other, `,"c":"2"`, "", 1), "second"); err != nil {
		t.Fatal(err)
	}
	c.Await(t, 0, ns, "cm/applied", "{.data.c}", "")
}
