package dataport

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

const (
	socketPrefix = "ps-"
	socketSuffix = ".sock"
	// maxSocketPath is the kernel's limit for a path, without the final zero byte.
	maxSocketPath = len(syscall.RawSockaddrUnix{}.Path) - 1
)

// Socket serves trainers on the same machine: the protocols of the port over a unix domain socket, at half the cost of TCP.
// Each start of a server has its own file name.
type Socket struct {
	*net.UnixListener

	Offer wire.Offer // for the reply to a hello
}

// DefaultFolder returns the directory of the sockets of this user's servers.
func DefaultFolder() string {
	return filepath.Join(os.TempDir(), "trainmaster-"+strconv.Itoa(os.Getuid()))
}

// OpenSocket creates a socket in the directory and removes the sockets of killed servers.
func OpenSocket(folder string) (*Socket, error) {
	if err := privateFolder(folder); err != nil {
		return nil, err
	}
	sweep(folder)
	s := &Socket{}
	rand.Read(s.Offer.Server[:]) //nolint:errcheck // it never fails
	name := fmt.Sprintf("%s%x%s", socketPrefix, s.Offer.Server[:6], socketSuffix)
	s.Offer.Path = filepath.Join(folder, name)
	// A socket is renamed to its final name after listen, so a socket with a final name that refuses connections is dead.
	early := filepath.Join(folder, "."+name)
	if len(early) > maxSocketPath {
		return nil, fmt.Errorf("path %q has %d bytes: expected at most %d: choose a directory with a shorter name", early, len(early), maxSocketPath)
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: early, Net: "unix"})
	if err != nil {
		return nil, err
	}
	listener.SetUnlinkOnClose(false)
	s.UnixListener = listener
	if err := errors.Join(os.Chmod(early, 0o600), os.Rename(early, s.Offer.Path)); err != nil {
		s.Close()
		os.Remove(early)
		return nil, err
	}
	return s, nil
}

// Close closes the listener and removes the file.
func (s *Socket) Close() error {
	os.Remove(s.Offer.Path) //nolint:errcheck // a file without a listener is swept by the next server
	return s.UnixListener.Close()
}

// privateFolder creates the directory, or checks that only this user can write to it.
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
		return fmt.Errorf("%q is %v: expected a directory of this user with mode 0700", folder, info.Mode())
	}
	return nil
}

// sweep removes the sockets that refuse connections.
func sweep(folder string) {
	files, _ := filepath.Glob(filepath.Join(folder, socketPrefix+"*"+socketSuffix))
	for _, path := range files {
		nc, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
		if err == nil {
			nc.Close()
		} else if errors.Is(err, syscall.ECONNREFUSED) {
			os.Remove(path) //nolint:errcheck // another server removed it, or the next start does
		}
	}
}
