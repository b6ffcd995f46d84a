package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// parseFlags parses values of --dataset, as the daemon does.
func parseFlags(values ...string) (string, error) {
	var d datasetFlags
	cmd := &cobra.Command{}
	d.add(cmd)
	for _, v := range values {
		if err := cmd.Flags().Set("dataset", v); err != nil {
			return "", err
		}
	}
	list, err := d.parse(cmd)
	var b strings.Builder
	for _, s := range list {
		fmt.Fprintf(&b, "%s %d/%d %q", s.Name, s.Weight, s.Passes, s.Paths)
		if s.Online {
			b.WriteString(" online")
		}
		b.WriteString("; ")
	}
	return strings.TrimSuffix(b.String(), "; "), err
}

func TestDatasetFlags(t *testing.T) {
	for _, c := range []struct {
		values []string
		want   string
	}{
		{[]string{"a=/x"}, `a 1/0 ["/x"]`},
		{[]string{"a=/x,weight=0.75", "b=/y,weight=0.25"}, `a 75/0 ["/x"]; b 25/0 ["/y"]`},
		{[]string{"a=/x,weight=3", "b=/y"}, `a 3/0 ["/x"]; b 1/0 ["/y"]`},
		{[]string{"a=/x,weight=0.50", "b=/y,weight=1.5"}, `a 5/0 ["/x"]; b 15/0 ["/y"]`},
		{[]string{"a=/x,passes=4,weight=0.000001"}, `a 1/4 ["/x"]`},
		{[]string{"a=/x", "b=/y", "a=/z,weight=2"}, `a 2/0 ["/x" "/z"]; b 1/0 ["/y"]`},
		{[]string{"a=/x,y=1,z,weight=2"}, `a 2/0 ["/x,y=1,z"]`},
		{[]string{"a=s3://bucket/a,b/?region=eu&x=1,passes=2"}, `a 1/2 ["s3://bucket/a,b/?region=eu&x=1"]`},
		{[]string{"r=range://numbers?records=100&per-task=10"}, `r 1/0 ["range://numbers?records=100&per-task=10"]`},
		{[]string{"a=/x-*,online"}, `a 1/0 ["/x-*"] online`},
		{[]string{"a=/x,online,weight=2", "a=/y"}, `a 2/0 ["/x" "/y"] online`},
		{nil, ``},
	} {
		if got, err := parseFlags(c.values...); err != nil || got != c.want {
			t.Errorf("%q: got %s, %v; expected %s", c.values, got, err, c.want)
		}
	}
	for values, want := range map[string]string{
		"/x":                                 "no NAME=",
		"=/x":                                "no NAME=",
		"a=":                                 "no path",
		"a=,weight=1":                        "no path",
		"a=,online":                          "no path",
		"a=/x,weight=":                       "weight= twice or without a value",
		"a=/x,weight=1,weight=2":             "weight= twice",
		"a=/x,weight=0":                      `above 0 of at most 6 decimal places, such as 0.3, found "0"`,
		"a=/x,weight=-1":                     `found "-1"`,
		"a=/x,weight=1e3":                    `found "1e3"`,
		"a=/x,weight=0.0000001":              `found "0.0000001"`,
		"a=/x,weight=0.000001 b=/y,weight=2": "weight of b: expected at most 1000000 after all weights are multiplied by 1000000",
		"a=/x,passes=0":                      `passes=N with N from 1, found "0"`,
		"a=/x,passes=x":                      `found "x"`,
		"evaluation=/x":                      `expected another name than "evaluation"`,
		"a/b=/x":                             `letters, digits`,
		"a=/x,weight=1 a=/y,weight=2":        "expected the weight of a once, found 1 before",
		"a=/x,passes=1 a=/y,passes=2":        "expected the passes of a once, found 1 before",
	} {
		if _, err := parseFlags(strings.Fields(values)...); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "--dataset") {
			t.Errorf("%s: expected an error of --dataset with %q, got %v", values, want, err)
		}
	}
}
