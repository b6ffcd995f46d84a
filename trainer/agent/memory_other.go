//go:build !linux

package agent

import (
	"errors"
	"net"
)

var errLinux = errors.New("the agent needs Linux: memfd and pidfd")

type memory struct {
	fd    int
	bytes []byte
}

func newMemory(int) (*memory, error) { return nil, errLinux }

func (m *memory) release() {}

func sendMemory(*net.UnixConn, []byte, *memory) (int, error) { return 0, errLinux }

func watchParent(int) (<-chan struct{}, error) { return nil, errLinux }

func isExiting(int) bool { return false }

func connectionOf(int) (*net.UnixConn, error) { return nil, errLinux }

func unmapStart() error { return errLinux }
