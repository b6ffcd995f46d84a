package pserver

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"trainmaster/pserver/wire"
)

// Values of Config.DataSocket besides a folder.
const (
	SocketAuto = "auto"
	SocketOff  = "off"
)

const (
	socketPrefix = "ps-"
	socketSuffix = ".sock"
	// maxSocketPath is what the kernel has room for, without the zero byte at the end.
	maxSocketPath = len(syscall.RawSockaddrUnix{}.Path) - 1
)

// socket is the way in for trainers on the same machine: the protocols of the
// port over a unix domain socket, which costs half of what TCP does. Its file
// has a name that no other start of a server has.
type socket struct {
	*net.UnixListener
	offer wire.Offer
}

// socketFolder is where the sockets of this user's servers lie.
func (c *Config) socketFolder() string {
	if c.DataSocket != SocketAuto {
		return c.DataSocket
	}
	return filepath.Join(os.TempDir(), "trainmaster-"+strconv.Itoa(os.Getuid()))
}

// openSocket listens in the folder, from which it takes what killed servers left.
func openSocket(folder string) (*socket, error) {
	if err := privateFolder(folder); err != nil {
		return nil, err
	}
	sweep(folder)
	s := &socket{}
	rand.Read(s.offer.Server[:]) //nolint:errcheck // it never fails
	name := fmt.Sprintf("%s%x%s", socketPrefix, s.offer.Server[:6], socketSuffix)
	s.offer.Path = filepath.Join(folder, name)
	// A socket gets its name when it listens already, so that a named one which refuses is dead.
	early := filepath.Join(folder, "."+name)
	if len(early) > maxSocketPath {
		return nil, fmt.Errorf("path %q has %d bytes, the system takes %d: choose a folder with a shorter name", early, len(early), maxSocketPath)
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: early, Net: "unix"})
	if err != nil {
		return nil, err
	}
	listener.SetUnlinkOnClose(false)
	s.UnixListener = listener
	if err := errors.Join(os.Chmod(early, 0o600), os.Rename(early, s.offer.Path)); err != nil {
		s.Close()
		os.Remove(early)
		return nil, err
	}
	return s, nil
}

// Close ends listening and takes the file away.
func (s *socket) Close() error {
	os.Remove(s.offer.Path) //nolint:errcheck // a file without a listener is swept by the next server
	return s.UnixListener.Close()
}

// privateFolder makes the folder, or checks that nobody else can put anything there.
func privateFolder(folder string) error {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return err
	}
	info, err := os.Lstat(folder)
	if err != nil {
		return err
	}
	owner, known := info.Sys().(*syscall.Stat_t)
	if !info.IsDir() || !known || int(owner.Uid) != os.Getuid() || info.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("%q is %v: expected a folder of this user that is closed to others (mode 0700)", folder, info.Mode())
	}
	return nil
}

// sweep removes the sockets on which nobody listens any more.
func sweep(folder string) {
	files, _ := filepath.Glob(filepath.Join(folder, socketPrefix+"*"+socketSuffix))
	for _, path := range files {
		nc, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
		if err == nil {
			nc.Close()
		} else if errors.Is(err, syscall.ECONNREFUSED) {
			os.Remove(path) //nolint:errcheck // another server was faster, or the next one will
		}
	}
}
