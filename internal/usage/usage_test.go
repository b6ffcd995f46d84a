package usage_test

import (
	"errors"
	"fmt"
	"io/fs"
	"testing"

	"trainmaster/internal/usage"
)

func TestWrappedUsageErrorIsFound(t *testing.T) {
	err := fmt.Errorf("restore: %w", usage.Errorf("--file a: %w", fs.ErrNotExist))
	if !usage.Is(err) || !errors.Is(err, fs.ErrNotExist) || err.Error() != "restore: --file a: file does not exist" {
		t.Errorf("found %v, usage %v", err, usage.Is(err))
	}
	if usage.Is(fs.ErrNotExist) || usage.Is(nil) {
		t.Error("an error without Errorf is no usage error")
	}
}
