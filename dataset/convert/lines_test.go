package convert_test

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"trainmaster/dataset/convert"
)

// A table has the same records in CSV and in JSON lines.
func TestJSONLinesAreLikeCSV(t *testing.T) {
	above := 10.0
	for name, c := range map[string]struct {
		csv, lines string
		options    convert.Options
	}{
		"pixels":      {"a,b,label\n1,2,0\n2,0,1\n", "{\"a\":1,\"b\":2,\"label\":0}\n{\"a\":2,\"b\":0,\"label\":1}\n", convert.Options{}},
		"other order": {"a,b,label\n1,2,0\n2,0,1\n", "\ufeff{ \"a\": 1, \"b\": 2, \"label\": 0 }\r\n\n  {\"label\": 1, \"b\": 0, \"a\": 2}", convert.Options{}},
		"numbers":     {"a,b,label\n1e2,-2.5,0\n0.5,0,1\n", "{\"a\":1e2,\"b\":-2.5,\"label\":0}\n{\"a\":\"0.5\",\"b\":false,\"label\":true}\n", convert.Options{}},
		"label":       {"kind,a,b\nx,1,2\ny,2,0\n", "{\"kind\":\"x\",\"a\":1,\"b\":2}\n{\"kind\":\"y\",\"a\":2,\"b\":0}\n", convert.Options{Label: "kind", TextLabels: true}},
		"above":       {"a,b,label\n1,2,9\n2,0,11\n", "{\"a\":1,\"b\":2,\"label\":9}\n{\"a\":2,\"b\":0,\"label\":11}\n", convert.Options{LabelAbove: &above, Heading: convert.HeadingYes}},
	} {
		want, records, err := convertText(t, c.csv, c.options)
		if err != nil {
			t.Fatal(err)
		}
		got, same, err := convertText(t, c.lines, c.options)
		if err != nil || !slices.Equal(same, records) || !slices.Equal(got.Columns, want.Columns) || got.LabelColumn != want.LabelColumn {
			t.Errorf("%s: found %q, %+v, %v, expected %q, %+v", name, same, got, err, records, want)
		}
	}
}

// Categories can be in JSON lines, plain or gzipped. Their heading is known, so text labels need no option.
func TestCategoriesInJSONLines(t *testing.T) {
	examples := func(table []byte, o convert.Options) []string {
		o.Prefix = filepath.Join(t.TempDir(), "t")
		r, err := convert.Categorical(t.Context(), strings.NewReader(string(table)), o)
		if err != nil {
			t.Fatal(err)
		}
		return readExamples(t, r.Train.Paths)
	}
	const lines = "{\"place\":\"LAS\",\"day\":3,\"late\":\"yes\"}\n{\"place\":\"ABQ\",\"day\":4,\"late\":\"no\"}\n"
	want := examples([]byte("place,day,late\nLAS,3,yes\nABQ,4,no\n"), convert.Options{TextLabels: true, Heading: convert.HeadingYes})
	for _, table := range [][]byte{[]byte(lines), gzipped(t, []byte(lines))} {
		if got := examples(table, convert.Options{TextLabels: true}); !slices.Equal(got, want) {
			t.Errorf("found %q, expected %q", got, want)
		}
	}
}

func TestBadJSONLinesAreRefused(t *testing.T) {
	const first = "{\"a\":1,\"b\":2}\n"
	for _, test := range []struct{ table, want string }{
		{"{}\n", "line 1: expected features and a label, found the keys []"},
		{"{\"a\":1}\n", "line 1: expected features and a label, found the keys [\"a\"]"},
		{"{\n\"a\": 1,\n\"b\": 2}\n", "line 1: expected a whole JSON object in one line, found a part"},
		{"{\"a\":1,\"a\":2}\n", "line 1: expected the key \"a\" once, found it twice"},
		{first + "{\"a\":1,\"b\":2,\"b\":3}\n", "line 2: expected the key \"b\" once, found it twice"},
		{first + "{\"a\":1}\n", "line 2: expected the key \"b\", as in the first line, found none"},
		{first + "\n{\"a\":1,\"c\":3,\"b\":2}\n", "line 3: expected the keys of the first line, found \"c\""},
		{first + "{\"a\":1,\"b\":[2]}\n", "line 2: key \"b\": expected a number, a text, true or false, found an array"},
		{first + "{\"a\":1,\"b\":{}}\n", "line 2: key \"b\": expected a number, a text, true or false, found an object"},
		{first + "{\"a\":null,\"b\":2}\n", "line 2: key \"a\": expected a number, a text, true or false, found null"},
		{first + "1,2\n", "line 2: expected a JSON object, found \"1,2\""},
		{first + "{\"a\":1,\"b\":2} {}\n", "line 2: expected one JSON object, found \"{}\" after it"},
		{first + "{\"a\":1 \"b\":2}\n", "line 2: expected a JSON object: invalid character"},
		{first + "{\"a\":1", "line 2: expected a whole JSON object in one line"},
		{first + "{\"a\":\"x\",\"b\":2}\n", "line 2, key \"a\": \"x\" is not a number"},
		{first + "{\"a\":1,\"b\":2.5}\n", "line 2, key \"b\": label \"2.5\" is not a whole number"},
		{"{\"a\":1e400,\"b\":2}\n", "line 1, key \"a\": expected a number within ±3.4e+38, the range of float32, found 1e400"},
		{first, "label \"c\": expected a column from 1 to 2 or a name in a heading, found \"a,b\" in line 1"},
	} {
		o := convert.Options{}
		if strings.HasPrefix(test.want, "label") {
			o.Label = "c"
		}
		if _, _, err := convertText(t, test.table, o); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("found %v, expected %q", err, test.want)
		}
	}
	if _, _, err := convertText(t, first, convert.Options{Heading: convert.HeadingNo}); err == nil || !strings.Contains(err.Error(), "whose keys are the heading") {
		t.Errorf("found %v, expected a refusal of --header no", err)
	}
	_, err := convert.JSONLines(t.Context(), strings.NewReader("1,2,0\n"), convert.Options{Prefix: filepath.Join(t.TempDir(), "t")})
	if err == nil || !strings.Contains(err.Error(), `expected JSON lines, each an object such as {"width": 1.5, "label": 0}, found "1,2,0\n"`) {
		t.Errorf("found %v, expected a refusal of CSV", err)
	}
}
