package main

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"trainmaster/cmd/internal/cli"
	"trainmaster/master"
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
		{"--need-task-manager=false --need-pod-manager --workers 2 --worker-image x --prediction-data p", "--prediction-data from the command line: expected --need-task-manager"},
		{"--need-task-manager=false --need-pod-manager --workers 2 --worker-image x --trainers 7", "--trainers from the command line: expected --need-task-manager"},
		{"--need-task-manager=false --need-pod-manager --workers 2 --worker-image x --task-timeout-max 3m", "--task-timeout-max from the command line: expected --need-task-manager"},
		{"--need-pod-manager --workers 2 --worker-image x --distribution-strategy allreduce --ring 8", "--ring from the command line: expected MIN at most 2"},
		{"--need-pod-manager --workers 1:4 --worker-image x --distribution-strategy allreduce --ring 3", "--ring from the command line: expected MIN at most 1"},
		{"--need-pod-manager --workers 1500 --worker-image x --distribution-strategy allreduce", "--workers from the command line: expected 1 to 1000"},
		{"--distribution-strategy allreduce --ring 2 --explicit-commit", "--explicit-commit from the command line: expected none with --distribution-strategy allreduce"},
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

// F349: a flag that needs a part of the master is in the list of this part. A new flag must be in one list.
func TestEachFlagNeedsOnePartOrNone(t *testing.T) {
	general := strings.Fields(`accept-cluster advertise cacert cert config data-dir dial-timeout distribution-strategy endpoints etcd-advertise etcd-listen exit-codes help holddown http job key
		lease-ttl ledger ledger-dir ledger-keep ledger-seal-every linger listen log-format log-level need-pod-manager need-task-manager need-training-service own-etcd password ps
		ring ring-window store-timeout user version workers`)
	lists := map[string][]string{"general": general, "ofTasks": ofTasks, "onlyWithPods": onlyWithPods}
	known := map[string]int{}
	for _, list := range lists {
		for _, name := range list {
			known[name]++
		}
	}
	root := rootCommand()
	root.InitDefaultHelpFlag()
	root.InitDefaultVersionFlag()
	found := map[string]bool{}
	root.Flags().VisitAll(func(f *pflag.Flag) { found[f.Name] = true })
	root.PersistentFlags().VisitAll(func(f *pflag.Flag) { found[f.Name] = true })
	for name := range found {
		if known[name] != 1 {
			t.Errorf("--%s: expected it in one of the lists ofTasks, onlyWithPods and general, found it in %d", name, known[name])
		}
	}
	for name := range known {
		if !found[name] {
			t.Errorf("%s: expected a flag of the master", name)
		}
	}
}

// The commands of docs/combinations.md state the strategy and the protocol once: workers have them by variables.
func TestWorkersHaveTheStrategyAndTheProtocolOfTheMaster(t *testing.T) {
	for _, c := range []struct {
		parts combination
		want  string
	}{
		{combination{tasks: true, service: true, distribution: parameterServers}, ""},
		{combination{tasks: true, distribution: allReduce}, "TRAINMASTER_DISTRIBUTION_STRATEGY=allreduce TRAINMASTER_PROTOCOL=netrpc"},
		{combination{distribution: eachAlone}, "TRAINMASTER_DISTRIBUTION_STRATEGY=local"},
	} {
		var pods podFlags
		c.parts.apply(&master.Config{}, &pods)
		var found []string
		for _, v := range pods.cluster.Workers.Env {
			found = append(found, v.Name+"="+v.Value)
		}
		if text := strings.Join(found, " "); text != c.want {
			t.Errorf("%+v: expected %q, found %q", c.parts, c.want, text)
		}
	}
}
