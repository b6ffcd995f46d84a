package main

import (
	"github.com/spf13/cobra"

	"trainmaster/cmd/internal/cli"
	"trainmaster/dataset/proxy"
	"trainmaster/master/grpcapi"
)

// proxySelf is the value of --data-proxy for the master itself.
const proxySelf = "self"

func (s *daemonSettings) validateDataProxy(cmd *cobra.Command) error {
	switch {
	case s.dataProxy == "":
	case s.dataProxy == proxySelf && len(s.config.Roots) == 0:
		//guard:own-data-proxy-has-roots
		return cli.SettingErrorf(cmd, "data-proxy", "expected --data-roots with it: every client of the port can read the files below them")
	case s.dataProxy != proxySelf && !cli.IsHostPort(s.dataProxy):
		return cli.SettingErrorf(cmd, "data-proxy", "expected self or host:port")
	}
	return nil
}

// proxyAddr returns the address of the data proxy that tasks name; "": they name none.
func (s *daemonSettings) proxyAddr() string {
	if s.dataProxy == proxySelf {
		return s.config.Advertise
	}
	return s.dataProxy
}

// proxy returns the data proxy that tasks name.
func (s *daemonSettings) proxy() (grpcapi.DataProxy, error) {
	if s.dataProxy != proxySelf {
		return grpcapi.DataProxy{Addr: s.proxyAddr()}, nil
	}
	service, err := proxy.NewService(proxy.Config{Roots: s.config.Roots})
	if err != nil {
		return grpcapi.DataProxy{}, cli.UsageErrorf("--data-roots: %w", err)
	}
	return grpcapi.DataProxy{
		Addr: s.proxyAddr(), Register: service.Register, Errors: proxy.Table, Large: proxy.Large, Codec: proxy.Codec(),
	}, nil
}
