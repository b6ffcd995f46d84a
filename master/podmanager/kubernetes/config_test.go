package kubernetes_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"trainmaster/master/podmanager/kubernetes"
)

func TestTemplateIsStrict(t *testing.T) {
	for text, want := range map[string]string{
		"spec: {containers: [{name: main, imag: x}]}":                                       `unknown field "spec.containers[0].imag"`,
		"spec: {restartPolicy: Always}":                                                     "expected Never",
		"spec: {terminationGracePeriodSeconds: 0}":                                          "expected at least 1",
		"spec: {containers: [{image: x}]}":                                                  "spec.containers[0].name: expected main",
		"spec: {nodeSelector: {a: b}, nodeSelector: {}}":                                    `"nodeSelector" already set`,
		"spec: {containers: [{name: main, image: x}]}":                                      "",
		"---\nspec: {containers: [{name: main}]}\n---\n# the end\n":                         "",
		"spec: {containers: [{name: main}]}\n---\nspec: {bogus: 1}\n":                       "expected one PodTemplateSpec, found 2 documents",
		"spec: {containers: [{name: main, command: [python3, train.py]}]}":                  "spec.containers[0]: expected no command and args of the container main",
		"spec: {containers: [{name: main, args: [x]}]}":                                     "expected no command and args",
		"spec: {containers: [{name: main}, {name: main}]}":                                  "spec.containers[1].name: expected each name once",
		`{"spec": {"containers": [{"name": "main", "env": [{"name": "TRAINMASTER_ID"}]}]}}`: "spec.containers[0].env: expected no TRAINMASTER_ID",
		"metadata: {labels: {queue: a}}\nspec: {volumes: [{name: v, emptyDir: {}}]}":        "",
	} {
		path := filepath.Join(t.TempDir(), "template.yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := kubernetes.ReadTemplate(path)
		switch {
		case want == "" && err != nil:
			t.Errorf("%s: %v", text, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: expected %q, found %v", text, want, err)
		}
	}
}

func TestResourcesNameTheirQuantity(t *testing.T) {
	list, err := kubernetes.ParseResources("cpu=500m, memory=2Gi,nvidia.com/gpu=1")
	if err != nil || list.Memory().Value() != 2<<30 || len(list) != 3 {
		t.Errorf("found %v, %v", list, err)
	}
	for _, text := range []string{"cpu", "cpu=x", "cpu=-1", "cpu=0", "cpu=1,cpu=2", "=1"} {
		if _, err := kubernetes.ParseResources(text); err == nil {
			t.Errorf("%s: expected an error", text)
		}
	}
}

func TestJobNameMustFitAPod(t *testing.T) {
	for name, ok := range map[string]bool{"digits": true, "a-1": true, "": false, "A": false, "a_b": false, "-a": false, "a-": false, strings.Repeat("a", 41): false} {
		if err := kubernetes.CheckJob(name); (err == nil) != ok {
			t.Errorf("%q: found %v", name, err)
		}
	}
}
