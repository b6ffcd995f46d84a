package e2e

import (
	"slices"
	"strings"
	"sync"
	"testing"
)

// commandLine is a command with what its --help says.
type commandLine struct {
	words    []string // after "master"; none for the daemon
	help     string
	examples []string // the command lines of the help's examples, without comments
}

// commands are found once, with the program of the first test that asks.
var commands struct {
	once sync.Once
	list []commandLine
}

// commandLines finds every command by what --help lists.
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
