package cli

import (
	"context"
	"errors"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"

	"trainmaster/etcdstore"
	"trainmaster/pserver"
)

// AddEtcdFlags gives cmd the flags that lead to a job's state in etcd, named as etcdctl names them. The configuration is
// filled when cmd runs; --own-etcd is the daemon's alone.
func AddEtcdFlags(cmd *cobra.Command) *etcdstore.Config {
	c := &etcdstore.Config{}
	flags := cmd.Flags()
	flags.StringSliceVar(&c.Endpoints, "endpoints", nil, "etcd `host:port`, several with commas between them")
	flags.StringVar(&c.CACert, "cacert", "", "PEM `file` of the authorities that may vouch for etcd")
	flags.StringVar(&c.Cert, "cert", "", "PEM `file` of our certificate for etcd")
	flags.StringVar(&c.Key, "key", "", "PEM `file` of the key to --cert")
	flags.StringVar(&c.User, "user", "", "etcd user, as `name` or name:password")
	flags.StringVar(&c.Password, "password", "", "password of --user; better in the environment, where ps does not show it")
	flags.DurationVar(&c.DialTimeout, "dial-timeout", 5*time.Second, "how long etcd may take for its first answer")
	c.Job = "default"
	flags.Var((*jobFlag)(&c.Job), "job", "`name` of the job: several jobs can share an etcd")
	cmd.MarkFlagsRequiredTogether("cert", "key")
	return c
}

// AddStoreTimeout gives cmd --store-timeout, for processes of a job: they wait for an etcd that is not reachable yet. The
// function that it returns opens the store.
func AddStoreTimeout(cmd *cobra.Command) (open func(ctx context.Context, c etcdstore.Config, log *logrus.Entry) (*etcdstore.Store, error)) {
	limit := cmd.Flags().Duration("store-timeout", 10*time.Minute, "how long to wait for an etcd that does not answer at the start")
	return func(ctx context.Context, c etcdstore.Config, log *logrus.Entry) (*etcdstore.Store, error) {
		if err := c.Validate(); err != nil {
			return nil, UsageErrorf("--%w", err)
		}
		bounded, cancel := context.WithTimeout(ctx, *limit)
		defer cancel()
		return etcdstore.OpenRetry(bounded, c, func(err error, next time.Duration) {
			log.WithError(err).WithField("next", next.Round(time.Millisecond).String()).Warn("etcd does not answer, trying again")
		})
	}
}

const (
	leaderTimeout      = 10 * time.Minute // in pods: longer than a failover, and than a pod of a master that waits for a node
	leastLeaderTimeout = time.Second
)

// AddLeaderTimeout gives cmd --leader-timeout, for processes of a job that work only with a master. The function that it returns returns the limit; 0: none.
// watched: the process has the etcd of the job, which names the leader.
func AddLeaderTimeout(cmd *cobra.Command) (limit func(watched bool) (time.Duration, error)) {
	const name = "leader-timeout"
	given := cmd.Flags().Duration(name, 0, "end with an error if no master of the job has led for this `time`; 0: no limit (default: 10m with --exit-codes pod, else no limit)")
	return func(watched bool) (time.Duration, error) {
		switch {
		case cmd.Flags().Changed(name) && *given != 0 && !watched:
			return 0, SettingErrorf(cmd, name, "expected --endpoints of etcd with it, which names the leader")
		case cmd.Flags().Changed(name) && *given != 0 && *given < leastLeaderTimeout:
			return 0, SettingErrorf(cmd, name, "expected 0 (no limit) or at least %v", leastLeaderTimeout)
		//guard:leader-timeout-in-pods
		case !cmd.Flags().Changed(name) && UsesPodCodes(cmd, nil):
			return leaderTimeout, nil
		}
		return *given, nil
	}
}

// isStoreError reports whether err means exit code 3: etcd was unreachable, or refused the connection.
func isStoreError(err error) bool {
	return errors.Is(err, etcdstore.ErrUnreachable) || errors.Is(err, etcdstore.ErrRefused) || errors.Is(err, pserver.ErrLeaseLost) ||
		errors.Is(err, etcdstore.ErrDiskFull) || errors.Is(err, etcdstore.ErrStorage)
}

// jobFlag is a flag that takes names of jobs only.
type jobFlag string

func (j *jobFlag) String() string { return string(*j) }

func (j *jobFlag) Type() string { return "name" }

func (j *jobFlag) Set(name string) error {
	if name == "" || (etcdstore.Config{Endpoints: []string{"127.0.0.1:2379"}, Job: name}).Validate() != nil {
		return errors.New("expected a name of up to 128 letters, digits, '.', '_' and '-', which begins with a letter or digit")
	}
	*j = jobFlag(name)
	return nil
}
