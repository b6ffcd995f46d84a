package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		os.Exit(1)
	}
}

var errFailed = errors.New("failed: see the report")

// run runs the program, or a child process in its role.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if len(args) == 2 && (args[0] == roleMember || args[0] == roleTrainers) {
		return runRole(ctx, args[0], args[1])
	}
	flags := flag.NewFlagSet("soak", flag.ContinueOnError)
	flags.SetOutput(stderr)
	minutes := flags.Float64("minutes", 60, "`duration` of the faults in minutes")
	seed := flags.Uint64("seed", 0, "`seed` of the faults (0 = random)")
	program := flags.String("program", filepath.Join("bin", "master"), "path of the `program` under test")
	dir := flags.String("dir", "", "`directory` for the data, on a disk (default: the directory of temporary files)")
	output := flags.String("o", "text", "`format` of the report: text or json")
	file := flags.String("report", "", "additional `file` for the report as JSON")
	if err := flags.Parse(args); err != nil {
		return err
	}
	switch {
	case flags.NArg() > 0:
		return fmt.Errorf("expected only flags, found %q", flags.Args())
	case !(*minutes > 0):
		return fmt.Errorf("-minutes: expected more than 0, found %v", *minutes)
	case *output != "text" && *output != "json":
		return fmt.Errorf("-o: expected text or json, found %q", *output)
	}
	path, err := filepath.Abs(*program)
	if err == nil {
		_, err = os.Stat(path)
	}
	if err != nil {
		return fmt.Errorf("-program: expected the program under test, which `make build` builds: %w", err)
	}
	if *seed == 0 {
		*seed = rand.Uint64()
	}
	began := time.Now()
	s := soak{program: path, seed: *seed, length: time.Duration(*minutes * float64(time.Minute)), dir: *dir, logf: func(format string, args ...any) {
		fmt.Fprintf(stderr, "%8s  %s\n", time.Since(began).Round(time.Second), fmt.Sprintf(format, args...))
	}}
	r, err := s.run(ctx)
	if err != nil {
		return err
	}
	return closing(r, *output, *file, stdout)
}

// runRole runs a child process.
func runRole(ctx context.Context, role, config string) error {
	var process interface {
		run(ctx context.Context) error
	} = &member{}
	if role == roleTrainers {
		process = &trainers{}
	}
	if err := json.Unmarshal([]byte(config), process); err != nil {
		return fmt.Errorf("configuration of %s: %w", role, err)
	}
	return process.run(ctx)
}

// closing writes the report. It returns an error if the soak failed.
func closing(r *report, output, file string, stdout io.Writer) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	text = append(text, '\n')
	if file != "" {
		if err := os.WriteFile(file, text, 0o644); err != nil {
			return fmt.Errorf("-report: %w", err)
		}
	}
	if output == "json" {
		_, err = stdout.Write(text)
	} else {
		r.print(stdout)
	}
	if err == nil && !r.Passed {
		err = errFailed
	}
	return err
}
