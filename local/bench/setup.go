package bench

import (
	"fmt"
	"io"
)

// Setup is what all measurements have: their processes, their directory, and their output.
type Setup struct {
	Program  Program
	Folder   string           // for etcd's data or for checkpoints, on the disk to be measured; "": that of temporary files
	Progress func(now string) // may be nil
	Stderr   io.Writer        // of the children
}

func (s *Setup) say(format string, args ...any) {
	if s.Progress != nil {
		s.Progress(fmt.Sprintf(format, args...))
	}
}
