package dataset_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"trainmaster/dataset"
)

func TestRootWithUnknownParameterIsRefused(t *testing.T) {
	_, err := dataset.NewRoots([]string{"s3://bucket/x?foo=bar"})
	if err == nil || !errors.Is(err, dataset.ErrScheme) {
		t.Fatalf("expected an error with a sentinel (a code and a reason in grpcapi), got %v", err)
	}
}

func TestRootThatIsAFileIsRefused(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := dataset.NewRoots([]string{file}); err == nil || !strings.Contains(err.Error(), "expected a directory, found a file") {
		t.Errorf("got %v", err)
	}
}
