package ledger

import (
	"time"

	"trainmaster/internal/failpoint"
)

// OnStep sets a hook that runs after each step of sealing.
func (s *Sealer) OnStep(hook failpoint.Hook) { s.points = hook }

// Retry sets the pause after a failure.
func (s *Sealer) Retry(pause time.Duration) { s.retry = pause }

// ParseHead decodes the value of HeadKey.
var ParseHead = parseHead

// FileName returns the name of a sealed file.
func FileName(h Header, file []byte) string { return fileName(h.First, h.Last, digestOf(file)) }
