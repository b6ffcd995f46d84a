package pserver

import (
	"slices"
	"strings"
	"testing"

	"trainmaster/pserver/optimizer"
)

// Older versions read a plain optimizer's manifest, and refuse any other.
func TestManifestFormats(t *testing.T) {
	of := func(o optimizer.Config) *manifest {
		m, err := newModel(o, false, modelOf(t, 10).table)
		if err != nil {
			t.Fatal(err)
		}
		man := newManifest(m, 0, generation{1, 1}, &cut{})
		for _, name := range []string{weightsFile, slotFile(0), slotFile(1), pushesFile} {
			man.Files = append(man.Files, manifestEntry{Name: name})
		}
		return man
	}
	adam := of(optimizer.Config{Kind: optimizer.Adam})
	for want, man := range map[int]*manifest{
		1: of(optimizer.Config{Kind: optimizer.Momentum, LearningRate: 0.1}),
		2: of(optimizer.Config{Kind: optimizer.SGD, LearningRate: 0.1, ClipValue: 1}),
	} {
		if _, err := man.model(); err != nil || man.Format != want {
			t.Errorf("%v has format %d, %v, expected %d", man.Optimizer, man.Format, err, want)
		}
	}
	for want, change := range map[string]func(*manifest){
		"format 3":                                    func(m *manifest) { m.Format = 3 },
		"does not name optimizer-2.safetensors":       func(m *manifest) { m.Files = slices.Delete(slices.Clone(m.Files), 2, 3) },
		`optimizer "lion": expected`:                  func(m *manifest) { m.Optimizer.Kind = "lion" },
		`optimizer "adam": beta1 is 2: expected 0 or`: func(m *manifest) { m.Optimizer.Beta1 = 2 },
	} {
		man := *adam
		change(&man)
		if _, err := man.model(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, expected %q", err, want)
		}
	}
}
