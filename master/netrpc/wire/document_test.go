package wire_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"trainmaster/master/netrpc/wire"
	"trainmaster/taskqueue"
)

// document returns the page that describes the messages of this package.
func document(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../../docs/formats/net-rpc.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// everyStruct returns all structs in messages: requests, replies and their fields.
func everyStruct() map[string]reflect.Type {
	structs := map[string]reflect.Type{}
	var add func(t reflect.Type)
	add = func(t reflect.Type) {
		switch t.Kind() {
		case reflect.Slice, reflect.Array:
			add(t.Elem())
		case reflect.Struct:
			structs[t.Name()] = t
			for field := range t.Fields() {
				add(field.Type)
			}
		}
	}
	for _, message := range []any{
		taskqueue.Task{}, wire.JoinRequest{}, wire.JoinReply{}, wire.NextRequest{}, wire.NextReply{}, wire.TaskFailedRequest{},
		wire.HeartbeatRequest{}, wire.LeaveRequest{}, wire.SaveModelRequest{}, wire.SaveModelReply{}, wire.StagedRequest{}, wire.StagedReply{},
		wire.LastStepRequest{}, wire.CutWatchRequest{}, wire.FlushedRequest{}, wire.StepRequest{}, wire.StepReply{},
	} {
		add(reflect.TypeOf(message))
	}
	return structs
}

// fields lists names and types: a struct by its name, any other type by its gob encoding.
func fields(t reflect.Type) (list []string) {
	var name func(t reflect.Type) string
	name = func(t reflect.Type) string {
		switch t.Kind() {
		case reflect.Struct:
			return t.Name()
		case reflect.Slice:
			return "[]" + name(t.Elem())
		case reflect.Map:
			return "map[" + name(t.Key()) + "]" + name(t.Elem())
		case reflect.Array:
			return fmt.Sprintf("[%d]%s", t.Len(), strings.Replace(name(t.Elem()), "uint8", "byte", 1))
		}
		return t.Kind().String()
	}
	for field := range t.Fields() {
		list = append(list, field.Name+" "+name(field.Type))
	}
	return list
}

// The document has each struct with all its fields and types, in every place that shows the struct, and no other
// struct.
func TestDocumentListsEveryField(t *testing.T) {
	want, found := everyStruct(), map[string]bool{}
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(document(t), -1)
	for _, block := range blocks {
		source := block[1]
		if !strings.HasPrefix(source, "package ") {
			source = "package p\n" + source
		}
		file, err := parser.ParseFile(token.NewFileSet(), "", source, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			shown, ok := spec.Type.(*ast.StructType)
			if !ok || want[spec.Name.Name] == nil {
				t.Errorf("type %s: expected a struct of a message", spec.Name.Name)
				return true
			}
			var list []string
			for _, field := range shown.Fields.List {
				for _, name := range field.Names {
					list = append(list, name.Name+" "+types.ExprString(field.Type))
				}
			}
			found[spec.Name.Name] = true
			if has := fields(want[spec.Name.Name]); !slices.Equal(list, has) {
				t.Errorf("%s: found in the document\n%q, expected\n%q", spec.Name.Name, list, has)
			}
			return true
		})
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if !found[name] {
			t.Errorf("document: expected struct %s", name)
		}
	}
}

// The document has a row for each error that clients distinguish.
func TestDocumentListsEveryError(t *testing.T) {
	page := document(t)
	for _, known := range wire.Known {
		if !strings.Contains(page, "\n| `"+known.Error()+"` |") {
			t.Errorf("document: expected a row for %q", known)
		}
	}
	if rows := strings.Count(page[strings.Index(page, "| text begins with"):strings.Index(page, "All other texts")], "\n| `"); rows != len(wire.Known) {
		t.Errorf("%d rows for %d errors", rows, len(wire.Known))
	}
}
