package pserver_test

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"trainmaster/pserver/checkpoint"
)

// rewriteManifest changes the manifest of a checkpoint and its digest.
func rewriteManifest(folder string, change func(*checkpoint.Manifest)) error {
	path := filepath.Join(folder, checkpoint.ManifestFile)
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var s struct {
		SHA256   string
		Manifest json.RawMessage
	}
	var m checkpoint.Manifest
	if err := errors.Join(json.Unmarshal(text, &s), json.Unmarshal(s.Manifest, &m)); err != nil {
		return err
	}
	change(&m)
	inner, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return os.WriteFile(path, fmt.Appendf(nil, `{"sha256": "%x", "manifest": %s}`, sha256.Sum256(inner), inner), 0o644)
}
