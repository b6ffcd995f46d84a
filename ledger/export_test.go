package ledger

import "time"

// ErrCrash is what a step returns for a leader that dies there.
var ErrCrash = errCrash

// OnStep calls step after each step of sealing, and fails as it says.
func (s *Sealer) OnStep(step func(name string) error) { s.step = step }

// Retry shortens the pause after a failure.
func (s *Sealer) Retry(pause time.Duration) { s.retry = pause }

// ParseHead decodes the value of HeadKey.
var ParseHead = parseHead

// FileName is that of a sealed file.
func FileName(h Header, file []byte) string { return fileName(h.First, h.Last, digestOf(file)) }
