package cli

import (
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
)

// F358: the limit applies in pods by default, and only there: a process that was started by hand may wait for its master without a limit.
func TestLeaderTimeoutAppliesInPods(t *testing.T) {
	for _, c := range []struct {
		args    string
		watched bool
		want    time.Duration
		fails   string
	}{
		{"", true, 0, ""},
		{"--exit-codes pod", true, 10 * time.Minute, ""},
		{"--exit-codes pod", false, 10 * time.Minute, ""}, // the pods of a master at a fixed address
		{"--exit-codes pod --leader-timeout 0", true, 0, ""},
		{"--leader-timeout 2m", true, 2 * time.Minute, ""},
		{"--leader-timeout 2m", false, 0, "expected --endpoints"},
		{"--leader-timeout 10ms", true, 0, "expected 0 (no limit) or at least 1s"},
		{"--leader-timeout -1s", true, 0, "expected 0 (no limit) or at least 1s"},
	} {
		root := &cobra.Command{Use: "root"}
		AddExitCodes(root)
		cmd := &cobra.Command{Use: "trainer"}
		limit := AddLeaderTimeout(cmd)
		var found time.Duration
		cmd.RunE = func(*cobra.Command, []string) (err error) {
			found, err = limit(c.watched)
			return err
		}
		root.AddCommand(cmd)
		root.SilenceErrors, root.SilenceUsage = true, true
		root.SetArgs(append([]string{"trainer"}, strings.Fields(c.args)...))
		err := root.Execute()
		if (err == nil) != (c.fails == "") || err != nil && !strings.Contains(err.Error(), c.fails) || found != c.want {
			t.Errorf("%q: expected %v and %q, found %v and %v", c.args, c.want, c.fails, found, err)
		}
	}
}
