package cli

import (
	"bytes"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
)

// Watch shows a value once, or repeatedly with --watch.
type Watch struct {
	format *string
	on     *bool
	every  *time.Duration
}

// AddWatch gives cmd the flags -o, --watch and --interval.
func AddWatch(cmd *cobra.Command) Watch {
	return Watch{
		format: AddOutput(cmd),
		on:     cmd.Flags().BoolP("watch", "w", false, "refresh until the job ends or an interrupt"),
		every:  cmd.Flags().Duration("interval", time.Second, "`time` between two refreshes of --watch"),
	}
}

// ANSI sequences that let a screen be written over without flicker.
const (
	cursorHome   = "\x1b[H"
	clearScreen  = "\x1b[2J"
	clearLineEnd = "\x1b[K"
	clearBelow   = "\x1b[J"
)

// Show renders the result of look: once, or with --watch until over. An error of the first call is returned. A later error, as
// during a failover, is shown and look is called again.
func (v Watch) Show(cmd *cobra.Command, look func() (value any, table func(w io.Writer), over bool, err error)) error {
	if *v.every < 10*time.Millisecond {
		return SettingErrorf(cmd, "interval", "expected at least 10ms")
	}
	ctx, out := cmd.Context(), cmd.OutOrStdout()
	value, table, over, err := look()
	if err != nil {
		return err
	}
	if !*v.on {
		return Render(out, *v.format, value, table)
	}
	screen := *v.format == "table" && IsTerminal(out)
	if screen {
		fmt.Fprint(out, clearScreen)
	}
	ticker := time.NewTicker(*v.every)
	defer ticker.Stop()
	for first := true; ; first = false {
		if err := v.frame(out, screen, first, value, table, err); err != nil {
			return err
		}
		if over {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil // an interrupt ends a watch
		case <-ticker.C:
		}
		var next any
		var nextTable func(w io.Writer)
		if next, nextTable, over, err = look(); err == nil {
			value, table = next, nextTable
		} else if ctx.Err() != nil {
			return nil
		}
	}
}

// frame writes one result: on a terminal over the previous result, else below it. lookErr is the reason if value is old.
func (v Watch) frame(out io.Writer, screen, first bool, value any, table func(w io.Writer), lookErr error) error {
	var b bytes.Buffer
	switch {
	case lookErr != nil && !screen:
		return nil // a program that reads the output gets new values only
	case !first && !screen && *v.format == "table":
		fmt.Fprintln(&b)
	case !first && *v.format == "yaml":
		fmt.Fprintln(&b, "---")
	}
	if err := Render(&b, *v.format, value, table); err != nil {
		return err
	}
	if screen {
		if lookErr != nil {
			fmt.Fprintf(&b, "\nlast known state; no new state: %v\n", lookErr)
		}
		text := bytes.ReplaceAll(b.Bytes(), []byte("\n"), []byte(clearLineEnd+"\n"))
		_, err := fmt.Fprintf(out, "%s%s%s", cursorHome, text, clearBelow)
		return err
	}
	_, err := out.Write(b.Bytes())
	return err
}
