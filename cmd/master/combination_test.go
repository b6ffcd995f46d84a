package main

import (
	"strings"
	"testing"

	"trainmaster/cmd/internal/cli"
)

// Combinations of parts that do nothing, or that exclude each other, are refused at the start, with the flag and the reason.
func TestUselessCombinationsAreRefused(t *testing.T) {
	kubeconfig := writeKubeconfig(t)
	for _, c := range []struct{ args, want string }{
		{"--need-task-manager=false", "--need-task-manager from the command line: expected a job with tasks or with pods (--workers), found neither"},
		{"--need-task-manager=false --need-training-service", "--need-training-service from the command line: expected --need-task-manager"},
		{"--need-task-manager=false --need-pod-manager --ps 2 --ps-image x", "expected the number of workers"},
		{"--need-task-manager=false --need-pod-manager --workers 2 --worker-image x --passes 3", "--passes from the command line: expected --need-task-manager"},
		{"--need-task-manager=false --need-pod-manager --workers 2 --worker-image x --evaluation-data e", "--evaluation-data from the command line: expected --need-training-service"},
		{"--need-training-service=false --evaluation-data e", "--evaluation-data from the command line: expected --need-training-service"},
		{"--ps 2 --distribution-strategy allreduce", "--ps from the command line: expected none with --distribution-strategy allreduce"},
		{"--ps 2 --distribution-strategy Local", "--ps from the command line: expected none with --distribution-strategy local"},
		{"--distribution-strategy ring", "expected parameter-server, allreduce or local"},
		{"--need-pod-manager --workers 2", "KUBECONFIG"},
	} {
		t.Run(c.args, func(t *testing.T) {
			t.Setenv("KUBECONFIG", kubeconfig)
			if c.want == "KUBECONFIG" {
				t.Setenv("KUBECONFIG", "")
			}
			root := rootCommand()
			root.SetArgs(append(strings.Split(c.args, " "), "--data-dir", t.TempDir()))
			err := root.ExecuteContext(t.Context())
			if err == nil || !strings.Contains(err.Error(), c.want) || cli.ExitCode(err) != cli.ExitUsage {
				t.Errorf("expected exit code 2 and %q, found %v", c.want, err)
			}
		})
	}
}

func TestDistributionStrategyHasOtherNames(t *testing.T) {
	for text, want := range map[string]distribution{
		"parameter-server": parameterServers, "parameter_server": parameterServers, "ParameterServerStrategy": parameterServers,
		"allreduce": allReduce, "AllreduceStrategy": allReduce, "all_reduce": allReduce,
		"local": eachAlone, "Local": eachAlone,
	} {
		var d distribution
		if err := d.Set(text); err != nil || d != want {
			t.Errorf("%s: expected %s, found %s, %v", text, want, d, err)
		}
	}
}

// A trainer that listens on loopback cannot be reached at the address of its pod.
func TestRingOfAPodIsReachable(t *testing.T) {
	t.Setenv("POD_IP", "10.0.0.7")
	root := rootCommand()
	root.SetArgs(strings.Fields("trainer --endpoints 127.0.0.1:1 --data x --distribution-strategy allreduce"))
	err := root.ExecuteContext(t.Context())
	if err == nil || !strings.Contains(err.Error(), "--ring-listen") || !strings.Contains(err.Error(), "10.0.0.7") || cli.ExitCode(err) != cli.ExitUsage {
		t.Errorf("expected exit code 2 and the flag --ring-listen, found %v", err)
	}
}
