package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"

	"trainmaster/cmd/internal/admin"
	"trainmaster/cmd/internal/cli"
	"trainmaster/etcdstore"
)

// embeddedFlags say where the embedded etcd of the daemon serves other processes.
type embeddedFlags struct {
	listen, advertise string
}

// add gives cmd the flags.
func (f *embeddedFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.listen, "etcd-listen", "", "`host:port` of the embedded etcd, an IP address; it has no authentication (default: a port of 127.0.0.1, the same after a restart)")
	cmd.Flags().StringVar(&f.advertise, "etcd-advertise", "", "`host:port` at which others reach the embedded etcd, and also its successor after a restart (default: POD_IP with the port of --etcd-listen, else --etcd-listen)")
}

// check returns an error for the first flag with an invalid value, and sets the default of --etcd-advertise.
func (f *embeddedFlags) check(cmd *cobra.Command, endpoints []string) error {
	if len(endpoints) > 0 {
		for _, flag := range []string{"etcd-listen", "etcd-advertise"} {
			if cmd.Flags().Changed(flag) {
				return cli.SettingErrorf(cmd, flag, "expected it without --endpoints: with them, no etcd is started")
			}
		}
		return nil
	}
	if f.listen == "" {
		if f.advertise != "" {
			return cli.SettingErrorf(cmd, "etcd-advertise", "expected --etcd-listen too: without it, etcd serves processes of this machine only")
		}
		return nil
	}
	host, port, err := net.SplitHostPort(f.listen)
	ip := net.ParseIP(host)
	switch {
	case err != nil || ip == nil:
		return cli.SettingErrorf(cmd, "etcd-listen", "expected the IP address and port that etcd listens at, such as 0.0.0.0:2379")
	case port == "" || port == "0":
		return cli.SettingErrorf(cmd, "etcd-listen", "expected a port that others can know before, such as 2379")
	}
	if f.advertise == "" {
		f.advertise = f.listen
		if pod := os.Getenv("POD_IP"); pod != "" {
			f.advertise = net.JoinHostPort(pod, port)
		}
	}
	host, port, err = net.SplitHostPort(f.advertise)
	ip = net.ParseIP(host)
	if err != nil || host == "" || port == "" || port == "0" || ip != nil && ip.IsUnspecified() {
		return cli.SettingErrorf(cmd, "etcd-advertise", "expected host:port that other processes can dial, found %s", f.advertise)
	}
	return nil
}

// start starts the embedded etcd in a directory.
func (f *embeddedFlags) start(ctx context.Context, dir string, log *logrus.Entry) (*etcdstore.Embedded, error) {
	etcd, err := admin.StartEmbedded(ctx, etcdstore.EmbeddedConfig{Dir: dir, ClientURL: f.listen, Advertise: f.advertise})
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("--etcd-listen %s: the port is in use, perhaps by another etcd: choose another one: %w", f.listen, err)
	case errors.Is(err, syscall.EADDRNOTAVAIL), errors.Is(err, syscall.EACCES) && f.listen != "":
		return nil, fmt.Errorf("--etcd-listen %s: expected an address of this machine and a port that this user may open: %w", f.listen, err)
	case err != nil:
		return nil, err // it names the embedded etcd
	}
	fields := logrus.Fields{"endpoint": etcd.Endpoint(), "data_dir": dir}
	if f.listen != "" {
		fields["advertise"] = etcd.Advertised()
	}
	log.WithFields(fields).Info("embedded etcd started")
	if f.listen != "" && !isLoopback(f.listen) {
		//guard:warning-of-open-etcd
		log.WithField("etcd_listen", f.listen).Warn("the embedded etcd has no TLS and no authentication: each process that reaches this port can change the job; restrict the port, for example by a NetworkPolicy")
	}
	return etcd, nil
}

// orFailed returns what run does, or the failure of the embedded etcd if that comes first. After such a failure nothing can be
// stored or confirmed any more, and the process ends as if it were killed: run is not waited for.
func orFailed(run func() error, failed <-chan error) error {
	ended := make(chan error, 1)
	go func() { ended <- run() }()
	select {
	case err := <-ended:
		return err
	case err := <-failed:
		return err
	}
}
