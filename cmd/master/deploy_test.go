package main

import (
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"trainmaster/cmd/internal/cli"
)

type container struct {
	Name  string   `json:"name"`
	Image string   `json:"image"`
	Args  []string `json:"args"`
	Env   []struct {
		Name string `json:"name"`
	} `json:"env"`
}

// containersOf returns the containers with arguments, at any depth of a manifest.
func containersOf(t *testing.T, node any) (list []container) {
	t.Helper()
	switch of := node.(type) {
	case []any:
		for _, element := range of {
			list = append(list, containersOf(t, element)...)
		}
	case map[string]any:
		if of["args"] != nil && of["name"] != nil {
			var c container
			text, err := json.Marshal(of)
			if err == nil {
				err = json.Unmarshal(text, &c)
			}
			if err != nil {
				t.Error(err)
			}
			return append(list, c)
		}
		for _, element := range of {
			list = append(list, containersOf(t, element)...)
		}
	}
	return list
}

// The command lines and variables of the manifests are of this program, and each process in a pod has the exit codes for the rules of its
// Job.
func TestManifestsHaveFlagsOfThisProgram(t *testing.T) {
	commands := 0
	err := filepath.WalkDir("../../deploy", func(path string, d fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".yaml" {
			return err
		}
		if filepath.Base(filepath.Dir(path)) == "templates" {
			return nil // of the chart, which e2e/k8s installs
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for document := range strings.SplitSeq(string(content), "\n---\n") {
			var object any
			if err := yaml.Unmarshal([]byte(document), &object); err != nil {
				t.Errorf("%s: %v", path, err)
			}
			for _, c := range containersOf(t, object) {
				if strings.HasPrefix(strings.TrimPrefix(c.Image, "localhost/"), "trainmaster") || c.Image == "" && c.Name == "main" {
					commands++
					checkCommand(t, path, c)
				}
			}
		}
		return nil
	})
	if err != nil || commands < 8 {
		t.Fatalf("%d command lines, %v", commands, err)
	}
}

func checkCommand(t *testing.T, path string, c container) {
	t.Helper()
	root := rootCommand()
	var known, environ []string
	for _, e := range c.Env {
		environ = append(environ, e.Name+"=x")
		known = append(known, e.Name)
	}
	for _, text := range cli.UnknownVariables(root, environ) {
		t.Errorf("%s, container %s: %s", path, c.Name, text)
	}
	pod := strings.Contains(strings.Join(known, " "), cli.EnvName("exit-codes")) || strings.Contains(strings.Join(c.Args, " "), "--exit-codes=pod")
	if !pod && c.Image != "" { // a patch has no image, and may have no variables
		t.Errorf("%s, container %s: expected --exit-codes=pod, or its variable", path, c.Name)
	}
	lines := [][]string{c.Args}
	for _, arg := range c.Args { // the command lines of other pods
		if name, value, _ := strings.Cut(arg, "="); strings.HasSuffix(name, "-command") {
			program, rest, _ := strings.Cut(value, " ")
			if program != "master" {
				t.Errorf("%s, container %s: %s: expected master as the program", path, c.Name, name)
			}
			lines = append(lines, strings.Fields(rest))
		}
	}
	for _, args := range lines {
		cmd, rest, err := root.Find(args)
		if err == nil {
			err = cmd.ParseFlags(rest)
		}
		if err == nil && cmd.Args != nil {
			err = cmd.Args(cmd, cmd.Flags().Args())
		}
		if err != nil {
			t.Errorf("%s, container %s: %q: %v", path, c.Name, args, err)
		}
	}
}
