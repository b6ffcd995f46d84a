package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// view is what a command shows once, or again and again with --watch.
type view struct {
	format *string
	on     *bool
	every  *time.Duration
}

// addWatch gives cmd the flags -o, --watch and --interval.
func addWatch(cmd *cobra.Command) view {
	return view{
		format: addOutput(cmd),
		on:     cmd.Flags().BoolP("watch", "w", false, "show it again and again, until the job is over or you interrupt"),
		every:  cmd.Flags().Duration("interval", time.Second, "`time` between two looks of --watch"),
	}
}

// ANSI sequences that let a screen be written over without flicker.
const (
	cursorHome   = "\x1b[H"
	clearScreen  = "\x1b[2J"
	clearLineEnd = "\x1b[K"
	clearBelow   = "\x1b[J"
)

// show renders what look returns: once, or until over. When the first look fails that is the error; later, while a master
// is replaced say, it is shown and the next look tried.
func (v view) show(cmd *cobra.Command, look func() (value any, table func(w io.Writer), over bool, err error)) error {
	if *v.every < 10*time.Millisecond {
		return settingErrorf(cmd, "interval", "expected at least 10ms")
	}
	ctx, out := cmd.Context(), cmd.OutOrStdout()
	value, table, over, err := look()
	if err != nil {
		return err
	}
	if !*v.on {
		return render(out, *v.format, value, table)
	}
	file, isFile := out.(*os.File)
	screen := *v.format == "table" && isFile && term.IsTerminal(int(file.Fd()))
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
			return nil // that is how a watch ends
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

// frame writes one look: over the one before on a terminal, else below it. lookErr is why value is not fresh.
func (v view) frame(out io.Writer, screen, first bool, value any, table func(w io.Writer), lookErr error) error {
	var b bytes.Buffer
	switch {
	case lookErr != nil && !screen:
		return nil // a program that reads along wants no old news
	case !first && !screen && *v.format == "table":
		fmt.Fprintln(&b)
	case !first && *v.format == "yaml":
		fmt.Fprintln(&b, "---")
	}
	if err := render(&b, *v.format, value, table); err != nil {
		return err
	}
	if screen {
		if lookErr != nil {
			fmt.Fprintf(&b, "\nas of a moment ago: %v\n", lookErr)
		}
		text := bytes.ReplaceAll(b.Bytes(), []byte("\n"), []byte(clearLineEnd+"\n"))
		_, err := fmt.Fprintf(out, "%s%s%s", cursorHome, text, clearBelow)
		return err
	}
	_, err := out.Write(b.Bytes())
	return err
}
