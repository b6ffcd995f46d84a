package taskqueue

import (
	"fmt"
	"testing"
	"time"
)

// Two processes with one name displace each other. The third time within 10 s is logged as a warning, and no other
// follows for a minute. A trainer that is killed and started again, or joins again over the same connection, is not
// reported.
func TestRivalsOfOneNameAreLogged(t *testing.T) {
	const second = Clock(1000)
	for name, c := range map[string]struct {
		joins   int
		every   Clock
		address func(n int) string
		cut     bool // the connection is lost before the next join
		want    int
	}{
		"rivals":          {8, second, perJoin, false, 1},
		"for minutes":     {70 * 2, second, perJoin, false, 3},
		"below the limit": {3, second, perJoin, false, 0},
		"slowly":          {40, 6 * second, perJoin, false, 0},
		"crashes":         {20, second, perJoin, true, 0},
		"same connection": {20, second, func(int) string { return "10.0.0.1:1" }, false, 0},
	} {
		q := datasetQueue(t, 2, Options{Passes: 1})
		now, warnings := q.Clock(), 0
		for n := range c.joins {
			j := q.Apply(now, &Join{ID: "a", Address: c.address(n)})
			if c.cut {
				q.Apply(now, &Disconnected{Trainer: j.Ordinal, Incarnation: j.Incarnation})
			}
			for _, n := range q.Ready().Notices {
				if n.Warning {
					warnings++
					if n.Fields["trainer"] != "a" || n.Fields["address"] == n.Fields["displaced"] {
						t.Errorf("%s: found the fields %v", name, n.Fields)
					}
				}
			}
			now = now.Add(time.Duration(c.every) * time.Millisecond)
		}
		if warnings != c.want {
			t.Errorf("%s: found %d warnings, expected %d", name, warnings, c.want)
		}
	}
}

func perJoin(n int) string { return fmt.Sprint("10.0.0.1:", 1000+n) }
