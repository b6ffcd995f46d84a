package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"trainmaster/cmd/internal/cli"
	"trainmaster/etcdstore"
)

// result is what one command line did.
type result struct {
	code           int
	stdout, stderr string
}

func runArgs(t *testing.T, args ...string) result {
	t.Helper()
	return executeArgs(t, rootCommand(), args...)
}

func executeArgs(t *testing.T, root *cobra.Command, args ...string) result {
	t.Helper()
	var stdout, stderr strings.Builder
	code := execute(t.Context(), root, args, &stdout, &stderr)
	return result{code, stdout.String(), stderr.String()}
}

// wants fails the test unless the exit code is as told and standard error has all the words.
func (r result) wants(t *testing.T, code int, words ...string) {
	t.Helper()
	if r.code != code {
		t.Errorf("exit code %d, want %d", r.code, code)
	}
	for _, word := range words {
		if !strings.Contains(r.stderr, word) {
			t.Errorf("standard error lacks %q", word)
		}
	}
	if t.Failed() {
		t.Logf("standard error: %s", r.stderr)
	}
}

func TestEveryCommandHasHelpWithAnExample(t *testing.T) {
	for cmd := range cli.Commands(rootCommand()) {
		if cmd.Hidden {
			continue
		}
		t.Run(strings.ReplaceAll(cmd.CommandPath(), " ", "_"), func(t *testing.T) {
			if cmd.Short == "" || cmd.Long == "" {
				t.Error("no Short or no Long help")
			}
			if !strings.Contains(cmd.Example, "master") {
				t.Errorf("the example %q shows no command line", cmd.Example)
			}
			args := append(strings.Fields(cmd.CommandPath())[1:], "--help")
			help := runArgs(t, args...)
			help.wants(t, cli.ExitOK)
			if !strings.Contains(help.stdout, "Examples:") {
				t.Errorf("the help shows no example:\n%s", help.stdout)
			}
		})
	}
}

// Kubernetes sets TRAINMASTER_PORT, TRAINMASTER_SERVICE_HOST and similar variables in every pod, if a service in its namespace is named
// trainmaster. A flag with such a twin would be set by chance.
func TestNoFlagIsSetByKubernetes(t *testing.T) {
	for _, name := range cli.SettingNames(rootCommand()) {
		if name == "port" || strings.HasPrefix(name, "port-") || strings.HasPrefix(name, "service-") {
			t.Errorf("--%s: its twin %s belongs to Kubernetes", name, cli.EnvName(name))
		}
	}
}

func TestEveryFlagHasUsageText(t *testing.T) {
	for cmd := range cli.Commands(rootCommand()) {
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if f.Usage == "" {
				t.Errorf("%s --%s has no usage text", cmd.CommandPath(), f.Name)
			}
		})
	}
}

func TestUsageErrors(t *testing.T) {
	tests := []struct {
		name string
		args []string
		want []string
	}{
		{"unknown flag", []string{"version", "--log-levle", "debug"}, []string{"unknown flag: --log-levle; did you mean --log-level?", "See 'master version --help'."}},
		{"unknown flag, nothing near", []string{"version", "--zzzzzzzzzzzzzzzz"}, []string{"unknown flag: --zzzzzzzzzzzzzzzz\n"}},
		{"unknown command", []string{"versoin"}, []string{`unknown command "versoin" for "master"; did you mean version?`}},
		{"unknown command with flags", []string{"versoin", "-o", "json"}, []string{"did you mean version?"}},
		{"bad choice", []string{"version", "-o", "xml"}, []string{`bad value "xml" for --output from the command line: expected one of table, json, yaml`}},
		{"no value", []string{"version", "-o"}, []string{"flag needs an argument"}},
		{"argument too many", []string{"version", "now"}, []string{"expected master version [flags], found \"now\"\n"}},
		{"unknown shell", []string{"completion", "tcsh"}, []string{"tcsh"}},
		{"help about nothing", []string{"help", "foo"}, []string{`no help about "foo"`}},
		{"help about nothing below", []string{"help", "recordio", "convret"}, []string{`master recordio has no command "convret"; did you mean convert?`}},
		{"job name", []string{"--job", "a/b", "--data-dir", "nowhere"}, []string{"--job", `bad value "a/b" for --job`}},
		{"etcd and directory", []string{"verify", "--data-dir", "x", "--endpoints", "127.0.0.1:1"}, []string{"--data-dir x and --endpoints 127.0.0.1:1: expected one of them"}},
		{"servers", []string{"--ps", "100000"}, []string{"--ps", "expected 0 (whatever etcd says) to 1024"}},
		{"synchronous, no servers", []string{"--update-mode", "sync"}, []string{"--ps", "--update-mode sync needs them"}},
		{"expected trainers", []string{"--trainers", "1000000000"}, []string{"--trainers", "to 1000000"}},
		{"chunks", []string{"--chunks-per-task", "100000000"}, []string{"--chunks-per-task", "to 1000000"}},
		{"lease", []string{"--lease-ttl", "9000h"}, []string{"--lease-ttl", "at most 1h"}},
		{"hold-down", []string{"--holddown", "-1s"}, []string{"--holddown", "expected 0 (the default) or more"}},
		{"no trainer id", []string{"trainer", "--id="}, []string{"--id", "letters"}},
		{"trainer id", []string{"trainer", "--id", "a/b"}, []string{`bad value "a/b" for --id`}},
		{"batch", []string{"trainer", "--data", "x", "--batch-size", "2000000000"}, []string{"--batch-size", "1048576"}},
		{"rank", []string{"trainer", "--data", "x", "--rank", "-1"}, []string{`"-1"`, "--rank", "expected 0 (chosen by the data) or more"}},
		{"nothing of a mean", []string{"trainer", "--data", "x", "--optimizer", "adam", "--beta1", "0"}, []string{"--beta1", "0 selects the default, 0.9"}},
		{"wire dtype", []string{"trainer", "--data", "x", "--wire-dtype", "float16"}, []string{"float16", "bfloat16"}},
		{"half a way", []string{"trainer", "--data", "x", "--addr", "127.0.0.1:1"}, []string{"found --addr alone"}},
		{"checkpoints", []string{"--checkpoint-keep", "-1"}, []string{"--checkpoint-keep: expected 0"}},
		{"advertise", []string{"pserver", "--endpoints", "127.0.0.1:1", "--advertise", ":0"}, []string{`--advertise ":0": expected host:port`}},
		{"bucket", []string{"pserver", "--endpoints", "127.0.0.1:1", "--checkpoint-dir", "ftp://bucket/job"}, []string{"--checkpoint-dir", "expected a directory or s3://bucket/prefix"}},
		{"bucket of a model", []string{"model", "inspect", "s3://key:secret@bucket/job"}, []string{"expected a URL without credentials", "AWS_ACCESS_KEY_ID"}},
		{"set in a bucket", []string{"model", "inspect", "s3://bucket/job/sets/4.json"}, []string{"sets/<number>.json with 8 digits"}},
		{"held out", []string{"recordio", "convert", "--held-out", "1.5", "a", "b"}, []string{`bad value "1.5" for --held-out`}},
		{"few shards", []string{"recordio", "convert", "--shards", "-1", "a", "b"}, []string{`bad value "-1" for --shards`}},
		{"many shards", []string{"recordio", "convert", "--shards", "1000000", "a", "b"}, []string{`bad value "1000000" for --shards`, "99999"}},
		{"no file", []string{"recordio", "stat"}, []string{"expected master recordio stat FILE...", "found nothing\n"}},
		{"one argument of two", []string{"model", "diff", "a"}, []string{"expected master model diff A B [flags], found \"a\"\n"}},
		{"a glob that the shell took", []string{"trainer", "--data", "a", "b"}, []string{"found \"b\": found arguments after the flags"}},
		{"a number that is none", []string{"queues", "--limit", "many"}, []string{`bad value "many" for --limit`, "expected a number"}},
		{"no shell", []string{"completion"}, []string{"expected master completion", "found nothing"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := runArgs(t, tt.args...)
			r.wants(t, cli.ExitUsage, tt.want...)
			if r.stdout != "" {
				t.Errorf("standard output has %q", r.stdout)
			}
		})
	}
}

func TestExitCodes(t *testing.T) {
	tests := map[string]struct {
		err  error
		code int
	}{
		"success":            {nil, cli.ExitOK},
		"plain error":        {errors.New("disk full"), cli.ExitFailed},
		"usage":              {cli.UsageErrorf("no such pass"), cli.ExitUsage},
		"etcd is away":       {fmt.Errorf("status: %w", etcdstore.ErrUnreachable), cli.ExitStore},
		"etcd refuses":       {fmt.Errorf("status: %w", etcdstore.ErrRefused), cli.ExitStore},
		"a typed exit error": {cli.ExitWith(cli.ExitFailed, errors.New("2 records doubled")), cli.ExitFailed},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			r := executeArgs(t, probe(func(*cobra.Command) error { return tt.err }), "probe")
			if tt.err == nil {
				r.wants(t, tt.code)
			} else {
				r.wants(t, tt.code, "master probe: "+tt.err.Error())
			}
		})
	}
}

func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	root := probe(func(cmd *cobra.Command) error {
		cancel()
		<-cmd.Context().Done()
		return fmt.Errorf("wait for the job: %w", cmd.Context().Err())
	})
	var stderr strings.Builder
	code := execute(ctx, root, []string{"probe"}, io.Discard, &stderr)
	if code != cli.ExitInterrupted || stderr.String() != "master probe: interrupted\n" {
		t.Errorf("exit code %d and %q, expected %d and the line of the interruption", code, stderr.String(), cli.ExitInterrupted)
	}
}

func TestGroupsRefuseWhatTheyDoNotHave(t *testing.T) {
	group := &cobra.Command{Use: "shards", Short: "s", Long: "Shards.", Example: "master shards list"}
	group.AddCommand(&cobra.Command{Use: "list", RunE: func(*cobra.Command, []string) error { return nil }})
	root := rootCommand()
	root.AddCommand(group)
	cli.FinishTree(root)
	executeArgs(t, root, "shards", "lits").wants(t, cli.ExitUsage, `unknown command "lits"`, "did you mean list?")
	if help := executeArgs(t, root, "shards"); help.code != cli.ExitOK || !strings.Contains(help.stdout, "Usage:") {
		t.Errorf("the group alone: exit code %d and %q, want its help", help.code, help.stdout)
	}
}

func TestVersion(t *testing.T) {
	r := runArgs(t, "version", "-o", "json")
	r.wants(t, cli.ExitOK)
	var v map[string]string
	if err := json.Unmarshal([]byte(r.stdout), &v); err != nil {
		t.Fatalf("%v in %q", err, r.stdout)
	}
	for _, field := range []string{"version", "commit", "go"} {
		if v[field] == "" {
			t.Errorf("no %s in %s", field, r.stdout)
		}
	}
	table := runArgs(t, "version")
	if lines := strings.Split(table.stdout, "\n"); len(lines) != 3 || !strings.HasPrefix(lines[0], "VERSION  COMMIT ") {
		t.Errorf("table: %q", table.stdout)
	}
}

func TestCompletion(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		r := runArgs(t, "completion", shell)
		r.wants(t, cli.ExitOK)
		if !strings.Contains(r.stdout, "master") {
			t.Errorf("%s: the script does not name master", shell)
		}
	}
	t.Setenv(cli.EnvName("config"), "/does/not/exist") // a broken setting must not break the tab key
	if r := runArgs(t, cobra.ShellCompRequestCmd, "version", "--output", ""); !strings.HasPrefix(r.stdout, "table\njson\nyaml\n") {
		t.Errorf("completion of --output: %q", r.stdout)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "digits.dataset.json"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, command := range [][]string{{"recordio", "convert", "--like"}, {"run", "--data"}, {"model", "evaluate", "--data"}} {
		if r := runArgs(t, append(append([]string{cobra.ShellCompRequestCmd}, command...), dir+"/di")...); !strings.HasPrefix(r.stdout, dir+"/digits\n") {
			t.Errorf("completion of %q: %q", command, r.stdout)
		}
	}
	if r := runArgs(t, cobra.ShellCompRequestCmd, "vers"); !strings.HasPrefix(r.stdout, "version\t") {
		t.Errorf("completion of vers: %q", r.stdout)
	}
}
