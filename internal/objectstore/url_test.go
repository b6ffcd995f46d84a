package objectstore_test

import (
	"errors"
	"strings"
	"testing"

	"trainmaster/internal/objectstore"
)

func TestParse(t *testing.T) {
	for name, want := range map[string]objectstore.Location{
		"s3://b/a/c":                            {Store: "s3://b", Key: "a/c"},
		"s3://b/a/c?z=1&endpoint=http://h:1":    {Store: "s3://b?endpoint=http%3A%2F%2Fh%3A1&z=1", Key: "a/c"},
		"s3://b":                                {Store: "s3://b"},
		"s3://b/":                               {Store: "s3://b"},
		"s3://b?z=1":                            {Store: "s3://b?z=1"},
		"s3://b/a/":                             {Store: "s3://b", Key: "a/"},
		"s3://b/a/part-*":                       {Store: "s3://b", Key: "a/part-", Pattern: "a/part-*"},
		"s3://b/a/[0-9]/x":                      {Store: "s3://b", Key: "a/", Pattern: "a/[0-9]/x"},
		"s3://b/a%2Ab%3Fc%25d":                  {Store: "s3://b", Key: "a*b?c%d"},
		"s3://b/a%2A*":                          {Store: "s3://b", Key: "a*", Pattern: `a\**`},
		"s3://b/a b+c/\u00e9":                   {Store: "s3://b", Key: "a b+c/\u00e9"},
		"s3://b/x?endpoint=http%3A%2F%2Fh%3A1&": {Store: "s3://b?endpoint=http%3A%2F%2Fh%3A1", Key: "x"},
	} {
		got, err := objectstore.Parse(name)
		if err != nil || got != want {
			t.Errorf("%s: %+v, %v; expected %+v", name, got, err, want)
			continue
		}
		if again, err := objectstore.Parse(got.String()); got.Pattern == "" && (err != nil || again != got) {
			t.Errorf("%s: %s is parsed as %+v, %v", name, got, again, err)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for name, want := range map[string]string{
		"http://169.254.169.254/latest": "begins with s3://",
		"file:///etc/passwd":            "begins with s3://",
		"s3:///key":                     "name of a bucket",
		"s3://b*/key":                   "name of a bucket",
		"s3://user:secret@b/key":        "without credentials",
		"s3://b/a//c":                   "without empty",
		"s3://b/../c":                   "without empty",
		"s3://b/a/./c":                  "without empty",
		"s3://b/%2E%2E/c":               "without empty",
		"s3://b/a%zz":                   "invalid URL escape",
		"s3://b/a%00":                   "expected no zero byte",
		"s3://b/a?x=%zz":                "invalid URL escape",
		"s3://b/a[":                     "syntax error in pattern",
		"s3://b/a?x#y":                  "expected no",
	} {
		if l, err := objectstore.Parse(name); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %+v, %v; expected %q", name, l, err, want)
		} else if !errors.Is(err, objectstore.ErrURL) && want != "syntax error in pattern" {
			t.Errorf("%s: %v is no ErrURL", name, err)
		}
	}
}

func TestMatches(t *testing.T) {
	for _, test := range []struct {
		name, key string
		want      bool
	}{
		{"s3://b/a/part-*", "a/part-1", true},
		{"s3://b/a/part-*", "a/part-1/x", false},
		{"s3://b/a/*", "a/.hidden", false},
		{"s3://b/a/.*", "a/.hidden", true},
		{"s3://b/a/*", "a/", false},
		{"s3://b/a/", "a/x/y", true},
		{"s3://b/a/", "a/x/.y", false},
		{"s3://b/a/", "a/x/", false},
		{"s3://b/a/", "ab", false},
		{"s3://b", "x", true},
		{"s3://b/a%2A", "a*", true},
		{"s3://b/a%2A", "ab", false},
		{"s3://b/a%2A?", "a*", true},
	} {
		l, err := objectstore.Parse(test.name)
		if err != nil {
			t.Fatal(err)
		}
		if got := l.Matches(test.key); got != test.want {
			t.Errorf("%s matches %q: %v", test.name, test.key, got)
		}
	}
}

func TestWithin(t *testing.T) {
	for _, test := range []struct {
		name, root string
		want       bool
	}{
		{"s3://b/a/c", "s3://b/a", true},
		{"s3://b/a/c", "s3://b/a/", true},
		{"s3://b/a/c", "s3://b", true},
		{"s3://b/a/part-*", "s3://b/a", true},
		{"s3://b/ab", "s3://b/a", false},
		{"s3://b/a*", "s3://b/a/", false},
		{"s3://c/a/c", "s3://b/a", false},
		{"s3://b/a/c?endpoint=http://127.0.0.1:1", "s3://b/a", false},
		{"s3://b/a/c", "s3://b/a?endpoint=http://127.0.0.1:1", false},
		{"s3://b/a/c?y=1&x=2", "s3://b/a?x=2&y=1", true},
	} {
		l, err := objectstore.Parse(test.name)
		if err != nil {
			t.Fatal(err)
		}
		root, err := objectstore.Parse(test.root)
		if err != nil {
			t.Fatal(err)
		}
		if got := l.Within(root); got != test.want {
			t.Errorf("%s within %s: %v", test.name, test.root, got)
		}
	}
}

// The URL of any key is parsed as that key, and is no pattern.
func FuzzLocation(f *testing.F) {
	f.Add("a/b c*%41?#")
	f.Fuzz(func(t *testing.T, key string) {
		l := objectstore.Location{Store: "s3://b?x=1", Key: key}
		again, err := objectstore.Parse(l.String())
		if err != nil {
			return // no key of an object
		}
		if again != l {
			t.Errorf("%+v is written as %s and parsed as %+v", l, l, again)
		}
	})
}
