package main

import (
	"os"
	"reflect"
	"strings"
	"testing"

	"trainmaster/cmd/internal/view"
	"trainmaster/ledger/verify"
	"trainmaster/local"
	"trainmaster/local/bench"
	"trainmaster/local/drill"
	"trainmaster/master/progress"
	"trainmaster/master/restore"
	"trainmaster/master/snapshot"
	"trainmaster/pserver/checkpoint/modelfile"
	"trainmaster/recordio/tool"
	"trainmaster/taskqueue"
)

// The fields of JSON output are an interface: scripts read them. Each stands in docs/reference.md, in its command's section.
func TestReferenceNamesEveryField(t *testing.T) {
	data, err := os.ReadFile("../../docs/reference.md")
	if err != nil {
		t.Fatal(err)
	}
	sections := map[string]string{}
	for section := range strings.SplitSeq(string(data), "\n### ") {
		title, text, _ := strings.Cut(section, "\n")
		sections[title] = text
	}
	tests := []struct {
		title  string
		values []any
	}{
		{"`master status -o json`", []any{view.Status{}}},
		{"`master queues -o json`", []any{view.Queues{}}},
		{"`master queues --literal -o json`", []any{view.LiteralQueues{}}},
		{"`master trainers -o json`", []any{view.Trainer{}}},
		{"`master pods -o json`", []any{view.Pods{}}},
		{"`master ring -o json`", []any{view.Ring{}}},
		{"The progress of a job in Kubernetes", []any{progress.Progress{}}},
		{"`master tasks -o json`", []any{view.Task{}}},
		{"`master tasks --of-record -o json`", []any{verify.Trace{}}},
		{"`master verify -o json`", []any{taskqueue.PassReport{}}},
		{"`master run -o json`", []any{local.Result{}}},
		{"`master drill -o json`", []any{drill.Report{}}},
		{"`master bench -o json`", []any{bench.QueueFigures{}, bench.FailoverFigures{}, bench.RecoveryFigures{}, bench.ReconnectFigures{}, bench.PSFigures{}, tool.Figures{}}},
		{"`master recordio`", []any{tool.Stat{}, tool.Verification{}, tool.ChunkRow{}, tool.CatRow{}}},
		{"`master snapshot -o json`", []any{snapshot.Head{}, view.Snapshot{}, restore.Result{}}},
		{"`master model -o json`", []any{exported{}, modelfile.SetReport{}, modelfile.TensorDiff{}, evaluated{}}},
		{"`master version -o json`", []any{buildVersion{}}},
	}
	for _, tt := range tests {
		text, ok := sections[tt.title]
		if !ok {
			t.Errorf("docs/reference.md has no section %s", tt.title)
			continue
		}
		for _, value := range tt.values {
			for _, field := range jsonFields(reflect.TypeOf(value)) {
				if !strings.Contains(text, "`"+field+"`") {
					t.Errorf("docs/reference.md, %s: nothing about the field %s of %T", tt.title, field, value)
				}
			}
		}
	}
}

// jsonFields lists the names of the fields of a type in JSON, with the fields of nested types.
func jsonFields(t reflect.Type) []string {
	var names []string
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice:
		return jsonFields(t.Elem())
	case reflect.Struct:
		for i := range t.NumField() {
			name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
			if name != "" && name != "-" {
				names = append(append(names, name), jsonFields(t.Field(i).Type)...)
			}
		}
	}
	return names
}
