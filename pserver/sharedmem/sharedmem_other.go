//go:build !linux

package sharedmem

import (
	"errors"
	"net"
	"os"
)

// Create says that there is no such memory on this system.
func Create(int) (*Memory, *os.File, error) { return nil, nil, errors.ErrUnsupported }

// Map says that there is no such memory on this system.
func Map(*os.File, int) (*Memory, error) { return nil, errors.ErrUnsupported }

// Close does nothing.
func (m *Memory) Close() error { return nil }

// Send says that there is no such memory on this system.
func Send(*net.UnixConn, []byte, *os.File) error { return errors.ErrUnsupported }

// Receive reads the next bytes into p.
func Receive(socket *net.UnixConn, p []byte) (int, *os.File, error) {
	n, err := socket.Read(p)
	return n, nil, err
}
