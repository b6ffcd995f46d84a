package local

import (
	"strings"
	"testing"
)

func TestOneLineEscapesAndBoundsText(t *testing.T) {
	for text, want := range map[string]string{
		"":                              "",
		`plain "text", größer`:          `plain "text", größer`,
		"two\nlines\x1b[31m red\r\x00":  `two\nlines\x1b[31m red\r\x00`,
		"no\xffUTF-8\u2028":             `no\xffUTF-8\u2028`,
		strings.Repeat("x", 300):        strings.Repeat("x", 300),
		strings.Repeat("x", 5000):       strings.Repeat("x", 300) + "...",
		strings.Repeat("\n", 5000):      strings.Repeat(`\n`, 150) + "...",
		strings.Repeat("ä", 5000):       strings.Repeat("ä", 150) + "...",
		"x" + strings.Repeat("ä", 5000): "x" + strings.Repeat("ä", 149) + "...",
	} {
		if got := OneLine(text); got != want {
			t.Errorf("of %.40q: found %q, expected %q", text, got, want)
		}
	}
}
