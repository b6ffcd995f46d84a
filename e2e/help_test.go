package e2e

import (
	"slices"
	"strings"
	"sync"
	"testing"
)

// commandLine is a command with its --help text.
type commandLine struct {
	words    []string // words after "master"; empty for the daemon
	help     string
	examples []string // example commands without comments
}

// commands caches the result of commandLines.
var commands struct {
	once sync.Once
	list []commandLine
}

// commandLines finds every command with --help.
func commandLines(t testing.TB) []commandLine {
	t.Helper()
	commands.once.Do(func() { commands.list = findCommands(t) })
	return commands.list
}

func findCommands(t testing.TB) (list []commandLine) {
	t.Helper()
	for todo := [][]string{nil}; len(todo) > 0; todo = todo[1:] {
		words := todo[0]
		o := run(t, t.TempDir(), append(slices.Clone(words), "--help")...)
		o.wants(t, 0)
		c := commandLine{words: words, help: o.stdout}
		section := ""
		for line := range strings.Lines(o.stdout) {
			line = strings.TrimRight(line, "\n")
			text := strings.TrimSpace(line)
			switch {
			case text == "" || strings.HasPrefix(text, "#"):
			case !strings.HasPrefix(line, " "):
				section = text
			case section == "Examples:" && len(c.examples) > 0 && strings.HasSuffix(c.examples[len(c.examples)-1], " \\"):
				last := &c.examples[len(c.examples)-1]
				*last = strings.TrimSuffix(*last, "\\") + text
			case section == "Examples:":
				c.examples = append(c.examples, text)
			case strings.HasSuffix(section, ":") && !strings.Contains(section, "Usage") && !strings.Contains(section, "Flags"):
				todo = append(todo, append(slices.Clone(words), strings.Fields(text)[0]))
			}
		}
		list = append(list, c)
	}
	return list
}
