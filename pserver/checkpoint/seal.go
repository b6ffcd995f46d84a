package checkpoint

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
)

// sealed is the content of a manifest file: the manifest and the digest of its exact bytes.
type sealed struct {
	SHA256   string          `json:"sha256"`
	Manifest json.RawMessage `json:"manifest"`
}

func seal(manifest any) ([]byte, error) {
	inner, err := json.Marshal(manifest)
	if err != nil {
		return nil, err
	}
	return fmt.Appendf(nil, "{\"sha256\": \"%x\",\n\"manifest\": %s}\n", sha256.Sum256(inner), inner), nil
}

func unseal(text []byte, manifest any) error {
	var s sealed
	if err := json.Unmarshal(text, &s); err != nil {
		return fmt.Errorf("expected JSON {sha256, manifest}, found %d bytes that are not: %w", len(text), err)
	}
	if got := fmt.Sprintf("%x", sha256.Sum256(s.Manifest)); got != s.SHA256 {
		return fmt.Errorf("SHA-256 starts with %.12s: expected %.12s as in the file", got, s.SHA256)
	}
	return json.Unmarshal(s.Manifest, manifest)
}
