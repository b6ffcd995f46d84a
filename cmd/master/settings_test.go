package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"trainmaster/cmd/internal/cli"
)

// probe is the real tree and one more command, which has a flag of each kind and does what the test says.
func probe(do func(cmd *cobra.Command) error) *cobra.Command {
	cmd := &cobra.Command{Use: "probe"}
	cmd.Flags().Duration("period", time.Second, "a duration")
	cmd.Flags().Int("count", 7, "a number")
	cmd.Flags().Bool("eager", false, "a switch")
	cmd.Flags().StringSlice("peers", nil, "a list")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return do(cmd) }
	root := rootCommand()
	root.AddCommand(cmd)
	cli.FinishTree(root)
	return root
}

// printSettings is a probe that prints its flags.
func printSettings() *cobra.Command {
	return probe(func(cmd *cobra.Command) error {
		for _, name := range []string{"period", "count", "eager"} {
			fmt.Fprintf(cmd.OutOrStdout(), "%s=%s ", name, cmd.Flag(name).Value)
		}
		peers, err := cmd.Flags().GetStringSlice("peers")
		fmt.Fprintf(cmd.OutOrStdout(), "peers=%q", peers)
		return err
	})
}

func writeConfig(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "job.yaml")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestPrecedence(t *testing.T) {
	const file = "period: 5s\ncount: 10000000\neager: true\npeers: [a, 'b,c']\n"
	tests := map[string]struct {
		args []string
		env  map[string]string
		file string
		want string
	}{
		"defaults":            {want: `period=1s count=7 eager=false peers=[]`},
		"file":                {file: file, want: `period=5s count=10000000 eager=true peers=["a" "b,c"]`},
		"file, one of a list": {file: "peers: [a]", want: `period=1s count=7 eager=false peers=["a"]`},
		"file, an empty list": {file: "peers: []", want: `period=1s count=7 eager=false peers=[]`},
		"environment over file": {
			env:  map[string]string{"TRAINMASTER_PERIOD": "9s", "TRAINMASTER_PEERS": "x,y", "TRAINMASTER_EAGER": "false"},
			file: file, want: `period=9s count=10000000 eager=false peers=["x" "y"]`,
		},
		"flag over environment": {
			args: []string{"--period", "2m", "--peers=z"},
			env:  map[string]string{"TRAINMASTER_PERIOD": "9s", "TRAINMASTER_PEERS": "x,y"},
			file: file, want: `period=2m0s count=10000000 eager=true peers=["z"]`,
		},
		"an empty variable is absent": {env: map[string]string{"TRAINMASTER_COUNT": ""}, file: file, want: `period=5s count=10000000 eager=true peers=["a" "b,c"]`},
		"another command's key":       {file: "output: json\n", want: `period=1s count=7 eager=false peers=[]`},
		"an empty file":               {file: "\n", want: `period=1s count=7 eager=false peers=[]`},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			for key, value := range tt.env {
				t.Setenv(key, value)
			}
			args := append([]string{"probe"}, tt.args...)
			if tt.file != "" {
				args = append(args, "--config", writeConfig(t, tt.file))
			}
			r := executeArgs(t, printSettings(), args...)
			r.wants(t, cli.ExitOK)
			if r.stdout != tt.want {
				t.Errorf("found %s\n want %s", r.stdout, tt.want)
			}
		})
	}
}

func TestConfigNamedByTheEnvironment(t *testing.T) {
	t.Setenv("TRAINMASTER_CONFIG", writeConfig(t, "count: 3"))
	r := executeArgs(t, printSettings(), "probe")
	r.wants(t, cli.ExitOK)
	if !strings.Contains(r.stdout, "count=3") {
		t.Errorf("found %s, want the count of the file", r.stdout)
	}
}

func TestBadSettingsNameTheirSource(t *testing.T) {
	tests := map[string]struct {
		args []string
		env  map[string]string
		file string
		want []string
	}{
		"flag":          {args: []string{"--period", "later"}, want: []string{`bad value "later" for --period from the command line`}},
		"environment":   {env: map[string]string{"TRAINMASTER_PERIOD": "later"}, want: []string{`bad value "later" for --period from the environment variable TRAINMASTER_PERIOD: `, "expected a duration such as 5s"}},
		"file":          {file: "period: later", want: []string{`bad value "later" for --period from the config file `, "job.yaml: "}},
		"unknown key":   {file: "perio: 3s", want: []string{"job.yaml", `unknown key "perio"`, "did you mean period?"}},
		"config key":    {file: "config: other.yaml", want: []string{`unknown key "config"`}},
		"twice":         {file: "count: 1\ncount: 2", want: []string{"job.yaml", "count"}},
		"mapping":       {file: "peers:\n  a: 1", want: []string{`key "peers": expected a plain value or a list of them, found a mapping`}},
		"no value":      {file: "count:", want: []string{`key "count": no value`}},
		"not YAML":      {file: "count: [", want: []string{"job.yaml", "line 1"}},
		"not a table":   {file: "- count", want: []string{"expected a mapping from flag names to values"}},
		"needless list": {file: "count: [1, 2]", want: []string{"--count", "expected one value, found a list of 2"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			for key, value := range tt.env {
				t.Setenv(key, value)
			}
			args := append([]string{"probe"}, tt.args...)
			if tt.file != "" {
				args = append(args, "--config", writeConfig(t, tt.file))
			}
			executeArgs(t, printSettings(), args...).wants(t, cli.ExitUsage, tt.want...)
		})
	}
}

func TestConfigFileThatCannotBeRead(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing.yaml")
	runArgs(t, "version", "--config", missing).wants(t, cli.ExitUsage, "--config", missing, "no such file")
	runArgs(t, "version", "--config", t.TempDir()).wants(t, cli.ExitUsage, "found a directory")
	t.Setenv("TRAINMASTER_CONFIG", missing)
	runArgs(t, "version").wants(t, cli.ExitUsage, "TRAINMASTER_CONFIG", missing)
}

func TestSettingErrorNamesTheSource(t *testing.T) {
	root := probe(func(cmd *cobra.Command) error {
		return cli.SettingErrorf(cmd, "count", "expected at least 1")
	})
	t.Setenv("TRAINMASTER_COUNT", "-4")
	executeArgs(t, root, "probe").wants(t, cli.ExitUsage,
		`bad value "-4" for --count from the environment variable TRAINMASTER_COUNT: expected at least 1`)
}

func TestRequiredFlagFromTheEnvironment(t *testing.T) {
	root := probe(func(*cobra.Command) error { return nil })
	cmd, _, err := root.Find([]string{"probe"})
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.MarkFlagRequired("peers"); err != nil {
		t.Fatal(err)
	}
	executeArgs(t, root, "probe").wants(t, cli.ExitUsage, `required flag(s) "peers" not set`)
	t.Setenv("TRAINMASTER_PEERS", "a")
	executeArgs(t, root, "probe").wants(t, cli.ExitOK)
}

func TestSettingNamesAreSortedAndWhole(t *testing.T) {
	names := cli.SettingNames(printSettings())
	if !slices.IsSorted(names) || !slices.Contains(names, "period") || !slices.Contains(names, "log-level") || slices.Contains(names, "config") {
		t.Errorf("found %v", names)
	}
}

// A directory on the command line takes precedence over an etcd in the environment.
func TestDataDirPrecedesEndpointsOfEnvironment(t *testing.T) {
	t.Setenv("TRAINMASTER_ENDPOINTS", "127.0.0.1:1")
	dir := t.TempDir()
	runArgs(t, "verify", "--data-dir", dir).wants(t, cli.ExitUsage, "--data-dir", dir, "expected the embedded etcd of a master, found none")
	runArgs(t, "verify", "--dial-timeout", "100ms").wants(t, cli.ExitStore, "127.0.0.1:1")
}

func TestUnknownVariablesAreNamed(t *testing.T) {
	t.Setenv("TRAINMASTER_LEASE_TLL", "5s")
	runArgs(t, "version").wants(t, cli.ExitOK, "TRAINMASTER_LEASE_TLL is no setting of any command, and is ignored; did you mean TRAINMASTER_LEASE_TTL?")
	found := cli.UnknownVariables(rootCommand(), []string{
		"HOME=/root", "TRAINMASTER_CONFIG=a", "TRAINMASTER_JOB=a", "TRAINMASTER_PORT=a", "TRAINMASTER_PORT_8080_TCP_ADDR=a", "TRAINMASTER_SERVICE_HOST=a",
		"TRAINMASTER_TRAINER=a", "TRAINMASTER_BIN=a", "TRAINMASTER_ETCD_SERVICE_PORT_CLIENT=a", "TRAINMASTER_QQQQQQQQQQQQQQQQ=a",
	})
	if len(found) != 1 || found[0] != "the environment variable TRAINMASTER_QQQQQQQQQQQQQQQQ is no setting of any command, and is ignored" {
		t.Errorf("found %q", found)
	}
}

// A config file is a regular file of at most 1 MiB: nothing else is read, and nothing is waited for.
func TestConfigMustBeSmallRegularFile(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	if err := errors.Join(syscall.Mkfifo(at("pipe"), 0o600), os.WriteFile(at("huge"), nil, 0o600), os.Truncate(at("huge"), 1<<40),
		os.WriteFile(at("large"), bytes.Repeat([]byte("# comment\n"), 1<<20/10+1), 0o600), os.Symlink("nowhere", at("link"))); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"pipe":  "expected a regular file, found a named pipe",
		".":     "expected a regular file, found a directory",
		"link":  `expected a regular file, found a link to "` + at("nowhere") + `", which does not exist`,
		"huge":  "expected a file of at most 1 MiB",
		"large": "expected a file of at most 1 MiB",
	} {
		t.Run(name, func(t *testing.T) {
			runArgs(t, "version", "--config", at(name)).wants(t, cli.ExitUsage, fmt.Sprintf("--config %q", at(name)), want)
			t.Setenv(cli.EnvName("config"), at(name))
			runArgs(t, "version").wants(t, cli.ExitUsage, fmt.Sprintf("TRAINMASTER_CONFIG %q", at(name)), want)
		})
	}
}

func TestConfigSyntaxErrorNamesLineAndColumn(t *testing.T) {
	for text, where := range map[string]string{
		"job: a\nlisten: [a\nps: 2\n": "line 2, column 9",
		"job: a\nlisten: ]\n":         "line 2, column 9",
		"job: a\nps\n":                "line 2, column 3",
		"job: a: b\n":                 "line 1, column 6",
		"job: a\n  ps: 2\n":           "line 2, column 3",
		"job: a\n\tps: 2\n":           "line 2, column 2",
		"# a comment\n\nendpoints:\n  - a\n  - b\njob: @x": "line 6, column 6",
		"endpoints: [a,\n  b]\njob: 'x\n":                  "line 3, column 6",
	} {
		_, err := cli.ParseConfig([]byte(text), []string{"job", "listen", "ps", "endpoints"})
		if err == nil || !strings.HasPrefix(err.Error(), where+": expected KEY: VALUE") || strings.Contains(err.Error(), "yaml: ") {
			t.Errorf("%q: found %v, want %s", text, err, where)
		}
	}
	_, err := cli.ParseConfig([]byte("job: a\njob: b\n"), []string{"job"})
	if err == nil || !strings.Contains(err.Error(), `key "job" already set`) || strings.Contains(err.Error(), "\n") {
		t.Errorf("duplicate key: %v", err)
	}
}

// The error of an unknown flag or an invalid value suggests the most similar known name.
func TestFlagErrorsNameNextStep(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"a beginning of two":      {[]string{"--task-timeout", "5s"}, "unknown flag: --task-timeout; did you mean --task-timeout-max or --task-timeout-min?"},
		"a slip":                  {[]string{"--lease-tll", "5s"}, "did you mean --lease-ttl?"},
		"a duration without unit": {[]string{"--lease-ttl", "5"}, `bad value "5" for --lease-ttl from the command line: expected a duration such as 5s`},
		"an address for etcd":     {[]string{"evaluations", "--addr", "127.0.0.1:8080"}, "unknown flag: --addr: this command reads etcd, without a master: use --endpoints or --data-dir"},
		"a file like a flag":      {[]string{"recordio", "stat", "-dash"}, "a file name? write ./-dash"},
	} {
		t.Run(name, func(t *testing.T) {
			runArgs(t, c.args...).wants(t, cli.ExitUsage, c.want)
		})
	}
	t.Setenv("TRAINMASTER_LEASE_TTL", "5")
	runArgs(t).wants(t, cli.ExitUsage, `bad value "5" for --lease-ttl from the environment variable TRAINMASTER_LEASE_TTL: expected a duration such as 5s`)
}
