package bench

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"trainmaster/etcdstore"
	"trainmaster/internal/tcpproxy"
)

const roleEtcd = "etcd"

// etcdConfig is an etcd with its default flags, in a process of its own.
type etcdConfig struct {
	Dir             string
	Delay           time.Duration // of each request, by a proxy in front
	MaxRequestBytes uint          // 0: the default
}

// etcdReady is the message of an etcd process when it serves.
type etcdReady struct {
	Endpoint string // through the proxy, if there is one
	Metrics  string // URL
}

// serve ends with the process: the data is thrown away, so nothing is closed.
func (c *etcdConfig) serve(ctx context.Context, p *parent) error {
	etcd, err := etcdstore.StartEmbedded(ctx, etcdstore.EmbeddedConfig{Dir: c.Dir, MaxRequestBytes: c.MaxRequestBytes})
	if err != nil {
		return err
	}
	ready := etcdReady{Endpoint: etcd.Endpoint(), Metrics: etcd.Endpoint() + "/metrics"}
	if c.Delay > 0 {
		proxy, err := tcpproxy.New(strings.TrimPrefix(etcd.Endpoint(), "http://"))
		if err != nil {
			return err
		}
		proxy.Delay(c.Delay, 0)
		ready.Endpoint = "http://" + proxy.Addr()
	}
	if err := p.out.Encode(ready); err != nil {
		return err
	}
	p.await()
	return nil
}

// etcdServer is a running etcd process with a directory of its own.
type etcdServer struct {
	*child
	etcdReady
	dir string
}

func startEtcd(ctx context.Context, program Program, folder string, c etcdConfig, stderr io.Writer) (*etcdServer, error) {
	dir, err := os.MkdirTemp(folder, "master-bench-etcd-")
	if err != nil {
		return nil, err
	}
	c.Dir = dir
	s := &etcdServer{dir: dir}
	if s.child, err = program.start(roleEtcd, c, stderr); err == nil {
		if err = s.receive(ctx, &s.etcdReady); err == nil {
			return s, nil
		}
		_ = s.child.stop()
	}
	_ = os.RemoveAll(dir)
	return nil, err
}

// close ends the process and removes its data.
func (s *etcdServer) close() error {
	err := s.stop()
	if gone := os.RemoveAll(s.dir); err == nil {
		err = gone
	}
	return err
}

// etcdCounters are running totals of an etcd process.
type etcdCounters struct {
	cpu time.Duration
	wal int64 // bytes written to the log
}

// counters reads the server's own metrics.
func (s *etcdServer) counters(ctx context.Context) (etcdCounters, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.Metrics, nil)
	if err != nil {
		return etcdCounters{}, err
	}
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		return etcdCounters{}, fmt.Errorf("metrics of etcd: %w", err)
	}
	defer answer.Body.Close()
	const cpu, wal = "process_cpu_seconds_total", "etcd_disk_wal_write_bytes_total"
	found := map[string]float64{}
	for lines := bufio.NewScanner(answer.Body); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), " ")
		if name == cpu || name == wal {
			if found[name], err = strconv.ParseFloat(value, 64); err != nil {
				return etcdCounters{}, fmt.Errorf("metrics of etcd: %s: %w", name, err)
			}
		}
	}
	for _, name := range []string{cpu, wal} {
		if _, ok := found[name]; !ok {
			return etcdCounters{}, fmt.Errorf("metrics of etcd at %s: no %s", s.Metrics, name)
		}
	}
	return etcdCounters{cpu: time.Duration(found[cpu] * float64(time.Second)), wal: int64(found[wal])}, nil
}
