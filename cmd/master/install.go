package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"trainmaster/cmd/internal/cli"
)

func installCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "install DIRECTORY",
		Short: "Copy this program into a directory",
		Long: `Install writes this program to DIRECTORY/master. In a pod, an init container with the image of the master puts it into a volume, so that
the image of a training program needs no change for master worker. A file with the same name is replaced.`,
		Example: `  master install /trainmaster`,
	}
	cmd.Args = func(_ *cobra.Command, args []string) error {
		if len(args) != 1 {
			return cli.UsageErrorf("expected a directory, found %d arguments", len(args))
		}
		return nil
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		path, err := install(args[0])
		if err != nil {
			return fmt.Errorf("install: %w", err)
		}
		fmt.Fprintln(cmd.OutOrStdout(), path)
		return nil
	}
	return cmd
}

// install copies this program into a directory, and returns the path of the copy. Another process never sees a part of it.
func install(dir string) (path string, err error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	from, err := os.Open(self)
	if err != nil {
		return "", err
	}
	defer from.Close()
	to, err := os.CreateTemp(dir, ".master-*")
	if err != nil {
		return "", err
	}
	defer func() {
		to.Close()
		if err != nil {
			os.Remove(to.Name())
		}
	}()
	if _, err = io.Copy(to, from); err != nil {
		return "", err
	}
	if err = to.Chmod(0o755); err != nil {
		return "", err
	}
	if err = to.Close(); err != nil {
		return "", err
	}
	path = filepath.Join(dir, "master")
	return path, os.Rename(to.Name(), path)
}
