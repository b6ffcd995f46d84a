package cli

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
)

func TestRender(t *testing.T) {
	value := struct {
		Name  string `json:"name"`
		Tasks int    `json:"tasks_left"`
	}{"a<b", 3}
	table := func(w io.Writer) { fmt.Fprintf(w, "NAME\tTASKS\n%s\t%d\n", value.Name, value.Tasks) }
	tests := map[string]string{
		"table": "NAME  TASKS\na<b   3\n",
		"json":  "{\n  \"name\": \"a<b\",\n  \"tasks_left\": 3\n}\n",
		"yaml":  "name: a<b\ntasks_left: 3\n",
	}
	for format, want := range tests {
		var out strings.Builder
		if err := Render(&out, format, value, table); err != nil {
			t.Fatal(err)
		}
		if out.String() != want {
			t.Errorf("%s: found %q, want %q", format, out.String(), want)
		}
	}
	if err := Render(io.Discard, "xml", value, table); ExitCode(err) != ExitUsage {
		t.Errorf("xml: %v, want a usage error", err)
	}
}

var errBroken = errors.New("pipe is broken")

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, errBroken }

func TestRenderReportsWhatItCannotWrite(t *testing.T) {
	table := func(w io.Writer) { fmt.Fprintln(w, "NAME") }
	for _, format := range []string{"table", "json", "yaml"} {
		if err := Render(brokenWriter{}, format, map[string]int{"a": 1}, table); !errors.Is(err, errBroken) {
			t.Errorf("%s: %v, want the writer's error", format, err)
		}
	}
}
