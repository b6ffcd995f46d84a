package pserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"time"

	"github.com/sirupsen/logrus"

	"trainmaster/pserver/dataport"
	"trainmaster/pserver/persist"
	"trainmaster/pserver/shard"
	"trainmaster/pserver/wire"
)

// Registry assigns indices to servers.
type Registry interface {
	// ClaimPS waits until an index is free, publishes addr under it for as long as a lease lives, and returns. During the wait it
	// calls waiting with the reason.
	ClaimPS(ctx context.Context, addr string, waiting func(reason string)) (Claim, error)
}

// Claim is the index of this process, held by a lease.
type Claim interface {
	Index() int
	persist.Jobs
	Lost() <-chan struct{}             // closed when the lease is gone without Release
	Release(ctx context.Context) error // frees the index for the next server
}

// JobState describes the job when a server starts.
type JobState = persist.JobState

// Rate is a committed factor of the learning rate.
type Rate = shard.Rate

// ErrOtherJob is the error of a checkpoint directory of another job.
var ErrOtherJob = persist.ErrOtherJob

// Values of Config.DataSocket other than a directory.
const (
	SocketAuto = "auto"
	SocketOff  = "off"
)

// Config configures a Server. Registry is required.
type Config struct {
	Registry Registry

	Listener  net.Listener // the server's from now on; default: a free port of 127.0.0.1
	Advertise string       // "ip:port" that trainers use; default: the listener's

	// DataSocket is the directory of a unix domain socket that trainers on the same machine find through the hello reply. It must
	// belong to this user, with mode 0700. The default, SocketAuto, is a directory in the system's temporary directory, with a
	// warning if that fails. SocketOff disables the socket.
	DataSocket string

	// CheckpointDir is a directory or the URL of a bucket, see [storage.Open], the same for all servers of the job. If it is
	// empty, no checkpoints are kept and a restart loses the parameters.
	CheckpointDir string
	CheckpointsOf string        // Another job whose checkpoints may be loaded. Default: none.
	CutLimit      time.Duration // Maximum duration of a master's cut. Updates copy the state that they change until it ends. Default 10 minutes.

	MaxConnections int           // Default 4096.
	StageBytes     int64         // For staged gradients. Trainers wait when it is full. Default 4 GiB.
	StageWait      time.Duration // Without a step for this time, gradients that do not fit are refused. Default 30 s.

	dataport.Limits               // BufferBytes: default 256 MiB. HelloTimeout: 10 s. FrameTimeout: 30 s. PullWait: 5 s.
	InitTimeout     time.Duration // An initializer without a request for this time loses its claim. Default 30 s.

	Log *logrus.Entry // default: the standard logger
}

// Validate returns an error for an invalid field, and sets the defaults.
func (c *Config) Validate() error {
	if c.Registry == nil {
		return errors.New("pserver.Config.Registry is nil: expected a registry of indices")
	}
	if c.Advertise == "" && c.Listener != nil {
		c.Advertise = c.Listener.Addr().String()
	}
	if c.Advertise != "" {
		host, _, err := net.SplitHostPort(c.Advertise)
		if err != nil {
			return fmt.Errorf("pserver.Config.Advertise is %q: expected host:port: %w", c.Advertise, err)
		}
		if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
			return fmt.Errorf("pserver.Config.Advertise is %q: expected an address that trainers reach, found all addresses of the machine", c.Advertise)
		}
	}
	c.DataSocket = cmp.Or(c.DataSocket, SocketAuto)
	if c.DataSocket != SocketAuto && c.DataSocket != SocketOff && !filepath.IsAbs(c.DataSocket) {
		return fmt.Errorf("pserver.Config.DataSocket is %q: expected %q, %q or an absolute path", c.DataSocket, SocketAuto, SocketOff)
	}
	c.CutLimit = cmp.Or(c.CutLimit, 10*time.Minute)
	c.MaxConnections = cmp.Or(c.MaxConnections, 4096)
	c.BufferBytes = cmp.Or(c.BufferBytes, 256<<20)
	c.StageBytes = cmp.Or(c.StageBytes, 4<<30)
	c.StageWait = cmp.Or(c.StageWait, 30*time.Second)
	c.HelloTimeout = cmp.Or(c.HelloTimeout, 10*time.Second)
	c.FrameTimeout = cmp.Or(c.FrameTimeout, 30*time.Second)
	c.PullWait = cmp.Or(c.PullWait, 5*time.Second)
	c.InitTimeout = cmp.Or(c.InitTimeout, 30*time.Second)
	for _, f := range []struct {
		name  string
		value int64
		least int64
	}{
		{"MaxConnections", int64(c.MaxConnections), 1},
		{"BufferBytes", c.BufferBytes, wire.MaxPayload},
		{"StageBytes", c.StageBytes, wire.MaxPayload},
		{"StageWait", int64(c.StageWait), 1},
		{"HelloTimeout", int64(c.HelloTimeout), 1},
		{"FrameTimeout", int64(c.FrameTimeout), 1},
		{"CutLimit", int64(c.CutLimit), 1},
		{"PullWait", int64(c.PullWait), 1},
		{"InitTimeout", int64(c.InitTimeout), 1},
	} {
		if f.value < f.least {
			return fmt.Errorf("pserver.Config.%s is %d: expected at least %d", f.name, f.value, f.least)
		}
	}
	if c.Log == nil {
		c.Log = logrus.NewEntry(logrus.StandardLogger())
	}
	return nil
}

// socketFolder returns the directory of the data socket.
func (c *Config) socketFolder() string {
	if c.DataSocket != SocketAuto {
		return c.DataSocket
	}
	return dataport.DefaultFolder()
}
