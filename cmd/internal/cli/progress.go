package cli

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// IsTerminal reports whether w is a terminal.
func IsTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

// Progress shows the number of converted samples: a bar on a terminal and a line every few seconds elsewhere.
type Progress struct {
	out  io.Writer
	bar  *progressbar.ProgressBar
	next time.Time
}

const progressLineEvery = 5 * time.Second

// NewProgress returns a progress on out.
func NewProgress(out io.Writer) *Progress {
	p := &Progress{out: out, next: time.Now().Add(progressLineEvery)}
	if IsTerminal(out) {
		p.bar = progressbar.NewOptions(1, progressbar.OptionSetWriter(out), progressbar.OptionSetDescription("samples"),
			progressbar.OptionShowCount(), progressbar.OptionShowIts(), progressbar.OptionSetItsString("samples"),
			progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionFullWidth())
	}
	return p
}

// Update shows that done samples of total are converted.
func (p *Progress) Update(done, total int) {
	const step = 256 // samples between two looks at the clock
	if done%step != 0 && done != total {
		return
	}
	if p.bar != nil {
		p.bar.ChangeMax(total)
		_ = p.bar.Set(done) // a bar that cannot be drawn is no reason to stop
		return
	}
	if now := time.Now(); done == total || now.After(p.next) {
		fmt.Fprintf(p.out, "converted %d of %d samples\n", done, total)
		p.next = now.Add(progressLineEvery)
	}
}

// End leaves the line of the bar.
func (p *Progress) End() {
	if p.bar != nil {
		fmt.Fprintln(p.out)
	}
}
