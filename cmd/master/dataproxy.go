package main

import (
	"context"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"

	"trainmaster/cmd/internal/cli"
	"trainmaster/dataset/proxy"
)

// dataproxyCommand is a data proxy process.
func dataproxyCommand() *cobra.Command {
	var listen string
	var config proxy.Config
	cmd := &cobra.Command{
		Use:   "dataproxy",
		Short: "Read records for trainers without the files",
		Long: `Dataproxy serves the gRPC service DataProxy: it reads RecordIO and TFRecord files for trainers that have no access to
them. It reads only files in the directories of --data-roots, also if links lead out of them, and objects below the URLs
of --data-roots. The port has no authentication: all clients that reach it can read these files.

It needs no etcd and keeps no state. After a restart, clients create their streams again and continue at the next record.
It exits with 0 when a signal stops it.`,
		Example: `  # serve the files below /data to trainers on this machine
  master dataproxy --data-roots /data
  # to trainers on other machines of a trusted network
  master dataproxy --data-roots /data,/more --listen 10.0.0.1:8082
  # objects of a bucket, which are kept on the disk for later passes
  master dataproxy --data-roots "s3://bucket/train?region=eu-central-1" --cache-dir /var/cache/train`,
		Args: cobra.NoArgs,
	}
	flags := cmd.Flags()
	flags.StringVar(&listen, "listen", "127.0.0.1:8082", "`host:port` for trainers (gRPC); port 0: a free one")
	flags.StringSliceVar(&config.Roots, "data-roots", nil, "`directories` that files must be in, / permits all files; and URLs that objects must be below (s3://bucket/prefix)")
	openStores := addDataCache(cmd)
	flags.IntVar(&config.MaxReaders, "max-readers", proxy.DefaultMaxReaders, "maximum `number` of concurrent readers, of at most 16 MiB each (0: the default)")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		switch {
		case len(config.Roots) == 0:
			return cli.SettingErrorf(cmd, "data-roots", "expected the directories of the files")
		case config.MaxReaders < 0:
			return cli.SettingErrorf(cmd, "max-readers", "expected 0 (the default) or more")
		}
		var err error
		if config.Stores, err = openStores(); err != nil {
			return err
		}
		return orStopped(cmd.Context(), runDataproxy(cmd.Context(), listen, config, cli.NewLogger(cmd)))
	}
	return cmd
}

func runDataproxy(ctx context.Context, listen string, config proxy.Config, log *logrus.Logger) error {
	service, err := proxy.NewService(config)
	if err != nil {
		return cli.UsageErrorf("--data-roots: %w", err)
	}
	listener, err := cli.Listen(listen, "--listen")
	if err != nil {
		return err
	}
	defer listener.Close()
	log.WithFields(logrus.Fields{"listen": listener.Addr().String(), "data_roots": config.Roots}).Info("serving")
	err = service.Serve(ctx, listener, logrus.NewEntry(log))
	if err == nil {
		log.Info("stopped")
	}
	return err
}
