package trainmasterv1

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// testdata/fields.txt lists all numbers of fields and enum values that a .proto file has or had. A line is
//
//	message number name type
//
// A removed field keeps its line, and its message lists the number and the name as reserved. A number therefore never gets
// another type, which a process of another version would misread.
const fieldList = "testdata/fields.txt"

func TestFieldNumberKeepsItsNameAndType(t *testing.T) {
	data, err := os.ReadFile(fieldList)
	if err != nil {
		t.Fatal(err)
	}
	stored := strings.Split(strings.TrimSpace(string(data)), "\n")
	if len(stored) < 200 {
		t.Fatalf("%s: expected 200 fields at least, found %d", fieldList, len(stored))
	}
	for _, err := range compareFields(stored, protoFiles()...) {
		t.Error(err)
	}
}

// protoFiles returns all files of this package.
func protoFiles() (files []protoreflect.FileDescriptor) {
	protoregistry.GlobalFiles.RangeFilesByPackage("trainmaster.v1", func(f protoreflect.FileDescriptor) bool {
		files = append(files, f)
		return true
	})
	return files
}

func TestComparisonFindsChangedFields(t *testing.T) {
	file := File_trainmaster_v1_parameter_server_proto
	var stored []string
	for _, d := range declarations(file) {
		stored = append(stored, d.fields...)
	}
	changed := slices.Clone(stored)
	changed[0] += "_before"
	for name, test := range map[string]struct {
		lines []string
		want  string
	}{
		"unchanged":               {stored, ""},
		"another type":            {changed, "give the new field a new number"},
		"a new field":             {slices.Delete(slices.Clone(stored), 0, 1), "not in"},
		"removed, not reserved":   {append(slices.Clone(stored), "trainmaster.v1.CommitStepRequest 999 gone string"), "reserved"},
		"a removed message":       {append(slices.Clone(stored), "trainmaster.v1.Gone 1 name string"), "message or enum"},
		"a damaged line, no type": {append(slices.Clone(stored), "trainmaster.v1.CommitStepRequest 1"), "four words"},
	} {
		t.Run(name, func(t *testing.T) {
			errs := compareFields(test.lines, file)
			if test.want == "" {
				if len(errs) > 0 {
					t.Errorf("found %v, expected no error", errs)
				}
				return
			}
			if len(errs) != 1 || !strings.Contains(errs[0].Error(), test.want) {
				t.Errorf("found %v, expected one error with %q", errs, test.want)
			}
		})
	}
}

// declaration is a message or an enum.
type declaration struct {
	fields     []string // lines of the list
	isReserved func(number int32, name string) bool
}

// compareFields returns the differences between the list and the files.
func compareFields(stored []string, files ...protoreflect.FileDescriptor) (errs []error) {
	found := map[string]declaration{}
	for _, file := range files {
		for name, d := range declarations(file) {
			found[name] = d
		}
	}
	for _, line := range stored {
		var name, field, kind string
		var number int32
		if n, err := fmt.Sscan(line, &name, &number, &field, &kind); n != 4 {
			errs = append(errs, fmt.Errorf("%s: line %q: expected four words: %w", fieldList, line, err))
			continue
		}
		d, ok := found[name]
		if !ok {
			errs = append(errs, fmt.Errorf("%s: no message or enum %s: delete its lines if no process of an older version sends it", fieldList, name))
			continue
		}
		prefix := fmt.Sprintf("%s %d ", name, number)
		at := slices.IndexFunc(d.fields, func(l string) bool { return strings.HasPrefix(l, prefix) })
		switch {
		case at >= 0 && d.fields[at] != line:
			errs = append(errs, fmt.Errorf("expected %q, found %q: give the new field a new number", line, d.fields[at]))
		case at < 0 && !d.isReserved(number, field):
			errs = append(errs, fmt.Errorf("%s: field %d (%s) is removed: list its number and its name as reserved", name, number, field))
		}
	}
	for _, d := range found {
		for _, line := range d.fields {
			number := strings.Join(strings.Fields(line)[:2], " ") + " "
			if !slices.ContainsFunc(stored, func(l string) bool { return strings.HasPrefix(l, number) }) {
				errs = append(errs, fmt.Errorf("%q is not in %s: add the line", line, fieldList))
			}
		}
	}
	return errs
}

// declarations returns the messages and enums of a file by name.
func declarations(file protoreflect.FileDescriptor) map[string]declaration {
	list := map[string]declaration{}
	addEnums(list, file.Enums())
	addMessages(list, file.Messages())
	return list
}

func addEnums(list map[string]declaration, enums protoreflect.EnumDescriptors) {
	for i := range enums.Len() {
		e := enums.Get(i)
		var lines []string
		for k := range e.Values().Len() {
			v := e.Values().Get(k)
			lines = append(lines, fmt.Sprintf("%s %d %s value", e.FullName(), v.Number(), v.Name()))
		}
		list[string(e.FullName())] = declaration{lines, func(number int32, name string) bool {
			return e.ReservedRanges().Has(protoreflect.EnumNumber(number)) && e.ReservedNames().Has(protoreflect.Name(name))
		}}
	}
}

func addMessages(list map[string]declaration, messages protoreflect.MessageDescriptors) {
	for i := range messages.Len() {
		m := messages.Get(i)
		addEnums(list, m.Enums())
		addMessages(list, m.Messages())
		var lines []string
		for k := range m.Fields().Len() {
			f := m.Fields().Get(k)
			lines = append(lines, fmt.Sprintf("%s %d %s %s", m.FullName(), f.Number(), f.Name(), typeOf(f)))
		}
		list[string(m.FullName())] = declaration{lines, func(number int32, name string) bool {
			return m.ReservedRanges().Has(protoreflect.FieldNumber(number)) && m.ReservedNames().Has(protoreflect.Name(name))
		}}
	}
}

// typeOf is the type of a field as one word: its kind, the name of its message or enum, and whether it repeats or has presence.
func typeOf(f protoreflect.FieldDescriptor) string {
	var word bytes.Buffer
	switch {
	case f.IsMap():
		word.WriteString("map:")
	case f.IsList():
		word.WriteString("repeated:")
	case f.HasOptionalKeyword():
		word.WriteString("optional:")
	case f.ContainingOneof() != nil:
		word.WriteString("oneof:")
	}
	word.WriteString(f.Kind().String())
	switch {
	case f.Message() != nil:
		fmt.Fprintf(&word, ":%s", f.Message().FullName())
	case f.Enum() != nil:
		fmt.Fprintf(&word, ":%s", f.Enum().FullName())
	}
	return word.String()
}
