package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"trainmaster/cmd/internal/cli"
	"trainmaster/testdata"
)

// Flags that have an effect only in evaluation rounds are refused in a job without evaluation data.
func TestEvaluationFlagsWithoutData(t *testing.T) {
	dir := t.TempDir()
	table := filepath.Join(dir, "digits.csv.gz")
	strategy := filepath.Join(dir, "strategy.yaml")
	if err := errors.Join(os.WriteFile(table, testdata.Digits, 0o600), os.WriteFile(strategy, []byte("stop: [{when: loss < 1}]\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	data := filepath.Join(dir, "data")
	runArgs(t, "recordio", "convert", table, data).wants(t, cli.ExitOK)
	for _, args := range [][]string{{"--target", "0.9"}, {"--patience", "2"}, {"--diverged-factor", "3"}, {"--metrics-out", "-"}} {
		runArgs(t, append([]string{"--data-dir", filepath.Join(dir, "etcd")}, args...)...).wants(t, cli.ExitUsage, args[0], "expected --evaluation-data: without it, the job has no evaluation rounds")
		runArgs(t, append([]string{"run", "--dir", dir, "--data", data}, args...)...).wants(t, cli.ExitUsage, args[0], "expected held-out records in --data, which recordio convert --held-out 0.2 writes")
	}
	runArgs(t, "run", "--dir", dir, "--data", data, "--strategy", strategy).wants(t, cli.ExitUsage, "--strategy", "expected held-out records in --data")
	if _, err := os.Stat(filepath.Join(dir, "001")); !os.IsNotExist(err) {
		t.Errorf("directory of a refused run: %v", err)
	}
}

// A trainer that is stopped while it waits for etcd exits with 0, as other daemons.
func TestTrainerIsStoppedDuringItsStart(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	var stdout, stderr strings.Builder
	code := execute(ctx, rootCommand(), []string{"trainer", "--endpoints", closedPort(t), "--dial-timeout", "200ms"}, &stdout, &stderr)
	if code != cli.ExitOK || !strings.Contains(stderr.String(), "stopped during the start") {
		t.Errorf("exit code %d, standard error %s", code, stderr.String())
	}
}

func TestDatasetErrorsNameTheElement(t *testing.T) {
	const good, bad = "news=/x", "books=/y,weight=0"
	runArgs(t, "--dataset", good, "--dataset", bad).wants(t, cli.ExitUsage, fmt.Sprintf("bad value '%s' for --dataset", bad))
	dir := t.TempDir()
	runArgs(t, "--data-dir", filepath.Join(dir, "etcd"), "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--dataset", "books="+dir+"/books,weigth=3").
		wants(t, cli.ExitUsage, `if "weigth=3" is an option, expected weight=W, passes=N or online`)
}
