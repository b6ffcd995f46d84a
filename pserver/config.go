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

	"trainmaster/pserver/table"
	"trainmaster/pserver/wire"
)

// Registry gives servers their indices.
type Registry interface {
	// ClaimPS waits until an index is free, publishes addr under it for as long as a lease lives, and returns. While it
	// waits it says why.
	ClaimPS(ctx context.Context, addr string, waiting func(reason string)) (Claim, error)
}

// Claim is an index that this process holds.
type Claim interface {
	Index() int
	Job() JobState // as it was when the index was claimed
	// Current returns the job as it is now.
	Current(ctx context.Context) (JobState, error)
	Lost() <-chan struct{}             // closed when the lease is gone without Release
	Release(ctx context.Context) error // frees the index for the next server
}

// JobState is what a server has to know of its job at its start.
type JobState struct {
	Name      string // "": not known
	ID        string // hexadecimal, another one for each life of a job of that name; "": not known
	Epoch     uint32
	Shards    int       // of the model; 0: as many as there were
	Life      int64     // another one after there was no server at all
	LatestSet []byte    // the set of checkpoints to start from, see [checkpoint.Set]; nil: none is named
	Named     int64     // revision of LatestSet: greater after each write, also of the same set; 0: none is named
	TableKey  table.Key // by which the ids of embedding tables are hashed, unless the checkpoint has another key; zero: none
	Placement []byte    // where blocks were moved to, see [placement.Layout]; nil: none was
}

// Config is what a Server needs to know. Registry has no default.
type Config struct {
	Registry Registry

	Listener  net.Listener // the server's from now on; default: a free port of 127.0.0.1
	Advertise string       // "ip:port" that trainers use; default: the listener's

	// DataSocket is the folder for a unix domain socket that trainers on the same machine find by themselves: a folder of
	// this user, closed to others. Default SocketAuto: one in the system's folder for temporary files, and a warning if
	// that cannot be; SocketOff: none.
	DataSocket string

	CheckpointDir string        // a folder or the URL of a bucket, see [storage.Open], the same for all servers of the job; "" keeps no checkpoints: a restart loses the parameters
	CheckpointsOf string        // another job, whose checkpoints there it may begin from; default: none
	Keep          int           // of those that the server saved itself, while there is no set; default 2
	CutLimit      time.Duration // for a master to collect a cut that it began: updates copy what they change meanwhile; default 10 minutes

	MaxConnections int           // default 4096
	BufferBytes    int64         // for frames on their way, and as much again of memory shared with trainers on this machine; default 256 MiB
	StageBytes     int64         // for staged gradients, default 4 GiB; beyond it trainers wait
	StageWait      time.Duration // after this time without a step, a trainer whose gradients do not fit with the others' is refused; default 30 s

	HelloTimeout time.Duration // for a new connection's first frame, default 10 s
	FrameTimeout time.Duration // for a payload once its header is there, and for a reply, default 30 s
	PullWait     time.Duration // longest wait for a version before the client has to ask again, default 5 s
	InitTimeout  time.Duration // an initialiser silent for this long loses its claim, default 30 s

	Log *logrus.Entry // default: the standard logger
}

// Validate says which field is wrong, and fills the defaults in.
func (c *Config) Validate() error {
	if c.Registry == nil {
		return errors.New("pserver.Config.Registry is nil: expected something that gives out indices")
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
			return fmt.Errorf("pserver.Config.Advertise is %q, every address of the machine: expected one that trainers reach", c.Advertise)
		}
	}
	c.DataSocket = cmp.Or(c.DataSocket, SocketAuto)
	if c.DataSocket != SocketAuto && c.DataSocket != SocketOff && !filepath.IsAbs(c.DataSocket) {
		return fmt.Errorf("pserver.Config.DataSocket is %q: expected %q, %q or an absolute path", c.DataSocket, SocketAuto, SocketOff)
	}
	c.Keep = cmp.Or(c.Keep, 2)
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
		{"Keep", int64(c.Keep), 1},
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
