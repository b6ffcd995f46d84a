//go:build k8s

package k8s

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// overlay returns the path of an overlay of deploy.
func (e *Env) overlay(name string) string { return filepath.Join(e.root, "deploy", "overlays", name) }

// The API server accepts each manifest, without unknown fields.
func TestManifestsAreValid(t *testing.T) {
	t.Parallel()
	c := ControlPlane(t)
	ns := c.Namespace(t)
	overlays, err := os.ReadDir(c.overlay(""))
	if err != nil || len(overlays) == 0 {
		t.Fatalf("%d overlays, %v", len(overlays), err)
	}
	for _, overlay := range overlays {
		out, err := c.Try("-n", ns, "apply", "-k", c.overlay(overlay.Name()), "--dry-run=server", "--validate=strict")
		if err != nil || !strings.Contains(out, "job.batch/digits created") {
			t.Errorf("%s: %v\n%s", overlay.Name(), err, out)
		}
	}
}

// wantAccuracy requires the accuracy of `master run` in a log, after the words.
func wantAccuracy(t *testing.T, words, log string) {
	t.Helper()
	var accuracy float64
	if m := regexp.MustCompile(words + ` +(0\.\d+)`).FindStringSubmatch(log); m != nil {
		var err error
		if accuracy, err = strconv.ParseFloat(m[1], 64); err != nil {
			t.Fatal(err)
		}
	}
	if accuracy < 0.93 {
		t.Errorf("accuracy %v, expected at least 0.93, in:\n%s", accuracy, log)
	}
}

func TestOnePodTrainsTheDigits(t *testing.T) {
	t.Parallel()
	c := Cluster(t)
	ns := c.Namespace(t)
	c.Kubectl(t, "-n", ns, "apply", "-k", c.overlay("one-pod"))
	c.Kubectl(t, "-n", ns, "wait", "--for=condition=complete", "job/digits", "--timeout=300s")
	wantAccuracy(t, "test accuracy", c.Kubectl(t, "-n", ns, "logs", "job/digits"))
}
