package cli

import (
	"errors"
	"fmt"
	"strings"

	"sigs.k8s.io/yaml"
)

// syntaxError says where a config file is not the mapping that it must be. The YAML library names no column, and often
// another line than the wrong one; the entries of a config file are independent of each other, so that each is parsed alone.
func syntaxError(data []byte, err error) error {
	reason := strings.Join(strings.Fields(strings.TrimPrefix(strings.TrimPrefix(err.Error(), "yaml: "), "unmarshal errors:")), " ")
	if at, column, what := firstBadEntry(string(data)); at > 0 {
		if _, after, ok := strings.Cut(what, "line "); ok { // of the entry, not of the file
			if _, rest, ok := strings.Cut(after, ": "); ok {
				what = rest
			}
		}
		return fmt.Errorf("line %d, column %d: expected KEY: VALUE or KEY: [VALUE, VALUE], with quotes around a value that has special characters: %s", at, column, what)
	}
	return errors.New(reason)
}

// firstBadEntry finds the first entry that is not valid YAML when it is parsed alone.
func firstBadEntry(text string) (line, column int, reason string) {
	lines := strings.Split(text, "\n")
	for first := 0; first < len(lines); {
		next := first + 1
		for next < len(lines) && continues(lines[next]) {
			next++
		}
		_, err := yaml.YAMLToJSONStrict([]byte(strings.Join(lines[first:next], "\n")))
		if err != nil {
			at := first
			if next > first+1 {
				if _, alone := yaml.YAMLToJSONStrict([]byte(lines[first])); alone == nil {
					at++ // the entry is whole without what is indented below it
				}
			}
			return at + 1, columnOf(lines[at], at == first), strings.TrimPrefix(err.Error(), "yaml: ")
		}
		if head := strings.TrimSpace(lines[first]); head != "" && !strings.HasPrefix(head, "#") && !strings.HasPrefix(head, "---") &&
			!strings.ContainsAny(head, ":") && !strings.HasPrefix(head, "-") {
			return first + 1, len(head) + 1, "found no colon"
		}
		first = next
	}
	return 0, 0, ""
}

// continues reports whether a line belongs to the entry above it.
func continues(line string) bool {
	return line == "" || strings.ContainsAny(line[:1], " \t-]}")
}

// columnOf is where the value of a line begins, if it has a key, else where its text begins.
func columnOf(line string, hasKey bool) int {
	text := strings.TrimLeft(line, " \t")
	column := len(line) - len(text) + 1
	if key, value, ok := strings.Cut(text, ":"); ok && hasKey {
		column += len(key) + 1 + len(value) - len(strings.TrimLeft(value, " "))
	}
	return column
}
