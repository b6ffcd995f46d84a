//go:build k8s

package k8s

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

var (
	yamlBlock = regexp.MustCompile("(?s)```yaml\n(.*?)```")
	flagName  = regexp.MustCompile("`(--[a-z-]+)`")
)

// examplesInPods returns the YAML blocks of the section "In pods" of a page, and the flags that the last of them replaces.
func examplesInPods(t *testing.T, c *Env, page string) (blocks, replaced []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(c.root, "docs", page))
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## In pods\n")
	section, _, _ = strings.Cut(section, "\n## ")
	for _, m := range yamlBlock.FindAllStringSubmatch(section, -1) {
		blocks = append(blocks, m[1])
	}
	for paragraph := range strings.SplitSeq(section, "\n\n") {
		if strings.Contains(paragraph, "these flags replace") {
			for _, m := range flagName.FindAllStringSubmatch(paragraph, -1) {
				replaced = append(replaced, m[1])
			}
		}
	}
	if len(blocks) == 0 || len(replaced) == 0 {
		t.Fatalf("%s: expected YAML blocks and the flags that they replace, found %d and %v", page, len(blocks), replaced)
	}
	return blocks, replaced
}

// copyOfDeploy copies the directory deploy, to be changed as the pages say. It returns the path of the overlay single.
func copyOfDeploy(t *testing.T, c *Env) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "deploy")
	if err := os.CopyFS(dir, os.DirFS(filepath.Join(c.root, "deploy"))); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "overlays", "single")
}

// replaceFlags puts the flags of a block in the place of others in job.yaml.
func replaceFlags(t *testing.T, overlay, block string, replaced []string) {
	t.Helper()
	path := filepath.Join(overlay, "job.yaml")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	const indent, place = "            ", "            - --etcd-advertise=master:2379\n"
	removed := map[string]bool{}
	var lines []string
	for line := range strings.Lines(string(text)) {
		name, _, _ := strings.Cut(strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(line), "- ")), "=")
		if slices.Contains(replaced, name) {
			removed[name] = true
			continue
		}
		lines = append(lines, line)
		if line == place {
			for flag := range strings.Lines(block) {
				lines = append(lines, indent+flag)
			}
		}
	}
	if len(removed) != len(replaced) {
		t.Fatalf("expected the flags %v in job.yaml, found %v", replaced, removed)
	}
	if err := os.WriteFile(path, []byte(strings.Join(lines, "")), 0o600); err != nil {
		t.Fatal(err)
	}
}

// addToPods adds the lists of a block to pod.yaml: volumes, init containers, and mounts of the container main.
func addToPods(t *testing.T, overlay, block string) {
	t.Helper()
	path := filepath.Join(overlay, "pod.yaml")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var pod, more struct {
		Spec map[string]any `json:"spec"`
	}
	for of, to := range map[string]any{string(text): &pod, block: &more} {
		if err := yaml.Unmarshal([]byte(of), to); err != nil {
			t.Fatal(err)
		}
	}
	add := func(to, from map[string]any, name string) {
		list, _ := to[name].([]any)
		to[name] = append(list, from[name].([]any)...)
	}
	add(pod.Spec, more.Spec, "initContainers")
	add(pod.Spec, more.Spec, "volumes")
	main := func(spec map[string]any) map[string]any { return spec["containers"].([]any)[0].(map[string]any) }
	add(main(pod.Spec), main(more.Spec), "volumeMounts")
	out, err := yaml.Marshal(pod)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, out, 0o600); err != nil {
		t.Fatal(err)
	}
}

// The example of docs/allreduce.md trains the digits, in a namespace that admits only restricted pods.
func TestExampleOfAllReduceInPods(t *testing.T) {
	t.Parallel()
	c := Cluster(t)
	ns := c.Namespace(t)
	c.restrict(t, ns)
	blocks, replaced := examplesInPods(t, c, "allreduce.md")
	overlay := copyOfDeploy(t, c)
	replaceFlags(t, overlay, blocks[0], replaced)
	c.volume(t, ns, "digits")
	c.Kubectl(t, "-n", ns, "apply", "-k", overlay)
	c.Kubectl(t, "-n", ns, "wait", "--for=condition=complete", "job/digits", "--timeout=300s")
	c.Kubectl(t, "-n", ns, "apply", "-f", filepath.Join(overlay, "evaluate.yaml"))
	c.Kubectl(t, "-n", ns, "wait", "--for=condition=complete", "job/digits-evaluate", "--timeout=120s")
	if log := c.Kubectl(t, "-n", ns, "logs", "job/digits-evaluate"); !strings.Contains(log, "accuracy") {
		t.Errorf("expected an accuracy, found\n%s", log)
	}
}

// The example of docs/rendezvous.md runs a program in an image without the program of the agent. The page has placeholders for the image and the command.
func TestExampleOfARingInPods(t *testing.T) {
	t.Parallel()
	c := Cluster(t)
	ns := c.Namespace(t)
	c.restrict(t, ns)
	blocks, replaced := examplesInPods(t, c, "rendezvous.md")
	overlay := copyOfDeploy(t, c)
	addToPods(t, overlay, blocks[0])
	flags := strings.NewReplacer("registry/program", "localhost/probe:1", "python3 /app/train.py /job", "/probe sleep 10s").Replace(blocks[1])
	if flags == blocks[1] {
		t.Fatalf("expected the image and the command of a program, found\n%s", flags)
	}
	replaceFlags(t, overlay, flags, replaced)
	c.volume(t, ns, "digits")
	c.Kubectl(t, "-n", ns, "apply", "-k", overlay)
	c.awaitRing(t, ns, "2 to 4 members", func(r ringView) bool { return len(r.Members) >= 2 })
	c.Kubectl(t, "-n", ns, "wait", "--for=condition=complete", "job/digits", "--timeout=180s")
}

// restrict makes a namespace admit only pods of the Pod Security Standard restricted.
func (e *Env) restrict(t *testing.T, ns string) {
	t.Helper()
	e.Kubectl(t, "label", "namespace", ns, "pod-security.kubernetes.io/enforce=restricted", "--overwrite")
}
