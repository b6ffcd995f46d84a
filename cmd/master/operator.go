package main

import (
	"github.com/spf13/cobra"

	"trainmaster/cmd/internal/cli"
	"trainmaster/master/podmanager/kubernetes"
	"trainmaster/operator"
)

func operatorCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "operator",
		Short: "Run the controller of TrainingJobs",
		Long: `Operator runs the controller of the custom resource TrainingJob in a Kubernetes cluster: for each TrainingJob it makes the Job of
a master and what this Job needs, and mirrors the state of the job in the status. It stores nothing outside the cluster, and can be
replaced at any time. The cluster must have the CustomResourceDefinition of deploy/operator.

It runs in a pod with a service account, or with KUBECONFIG. It ends when it is stopped, with the exit code 0. While the API server is
away, it waits.`,
		Example: `  # in the cluster
  kubectl apply -k deploy/operator
  # on this machine, for the jobs of one namespace
  KUBECONFIG=~/.kube/config master operator --namespaces default --leader-elect=false`,
		Args: cobra.NoArgs,
	}
	var c operator.Config
	flags := cmd.Flags()
	flags.StringSliceVar(&c.Namespaces, "namespaces", nil, "`namespaces` of the jobs (default: all)")
	face := flags.String("http", "127.0.0.1:8081", "`host:port` for HTTP (/healthz, /readyz, /metrics); empty: none")
	elect := flags.Bool("leader-elect", true, "elect one of several processes, with a lease in the namespace of the pod")
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		if *face != "" {
			if c.HTTP, err = cli.Listen(*face, "--http"); err != nil {
				return err
			}
			defer c.HTTP.Close()
		}
		var namespace string
		if c.API, namespace, err = kubernetes.Connect(); err != nil {
			return cli.UsageErrorf("connect to Kubernetes: %w", err)
		}
		if *elect {
			c.Lease = namespace
		}
		c.Log = cli.NewLogger(cmd).WithField("component", "operator")
		return operator.Run(cmd.Context(), c)
	}
	return cmd
}
