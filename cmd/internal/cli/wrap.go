package cli

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// Widths that texts for people fit into.
const (
	ScreenWidth = 80  // tables of status
	HelpWidth   = 100 // help
)

// WriteColumns writes lines of a name, a tab and a value as two columns. Values are wrapped so that lines fit the screen.
func WriteColumns(w io.Writer, rows string) {
	rows = strings.TrimSuffix(rows, "\n")
	width := 0
	for row := range strings.SplitSeq(rows, "\n") {
		name, _, _ := strings.Cut(row, "\t")
		width = max(width, len(name))
	}
	for row := range strings.SplitSeq(rows, "\n") {
		name, value, _ := strings.Cut(row, "\t")
		for _, line := range wrapped(value, ScreenWidth-width-2) {
			fmt.Fprintf(w, "%-*s  %s\n", width, name, line)
			name = ""
		}
	}
}

// wrapped breaks a line between words. A longer word gets its own line.
func wrapped(text string, width int) (lines []string) {
	line := ""
	for word := range strings.SplitSeq(text, " ") {
		if line != "" && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > width {
			lines = append(lines, line)
			line = word
			continue
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	return append(lines, line)
}

// reflowed wraps the paragraphs of a text at a width. Lines that begin with a space are left as they are.
func reflowed(text string, width int) string {
	var out []string
	for paragraph := range strings.SplitSeq(text, "\n\n") {
		if strings.HasPrefix(paragraph, " ") || strings.Contains(paragraph, "\n ") {
			out = append(out, paragraph)
			continue
		}
		out = append(out, strings.Join(wrapped(strings.Join(strings.Fields(paragraph), " "), width), "\n"))
	}
	return strings.Join(out, "\n\n")
}
