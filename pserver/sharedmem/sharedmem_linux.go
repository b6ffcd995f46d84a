package sharedmem

import (
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

// Create makes memory. The file is for [Send], and closed by the caller.
func Create(slots int) (*Memory, *os.File, error) {
	if err := checkSlots(slots); err != nil {
		return nil, nil, err
	}
	fd, err := unix.MemfdCreate("trainmaster", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, nil, fmt.Errorf("make shared memory: %w", err)
	}
	file := os.NewFile(uintptr(fd), "shared memory")
	if err := unix.Fallocate(fd, 0, 0, int64(slots)*SlotBytes); err != nil {
		file.Close()
		return nil, nil, fmt.Errorf("take %d MiB of shared memory: %w", slots*SlotBytes>>20, err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		file.Close()
		return nil, nil, fmt.Errorf("seal shared memory: %w", err)
	}
	m, err := Map(file, slots)
	if err != nil {
		file.Close()
	}
	return m, file, err
}

// Map takes a memory that another process made. The file is closed by the caller.
func Map(file *os.File, slots int) (*Memory, error) {
	if err := checkSlots(slots); err != nil {
		return nil, err
	}
	var stat unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &stat); err != nil {
		return nil, fmt.Errorf("shared memory: %w", err)
	}
	set, err := unix.FcntlInt(file.Fd(), unix.F_GET_SEALS, 0)
	if err != nil || set&seals != seals {
		return nil, fmt.Errorf("shared memory has the seals %#x (%v): expected %#x, without which a peer could take it away", set, err, seals)
	}
	if expected := int64(slots) * SlotBytes; stat.Size != expected {
		return nil, fmt.Errorf("shared memory has %d bytes, expected %d for %d slots", stat.Size, expected, slots)
	}
	bytes, err := unix.Mmap(int(file.Fd()), 0, int(stat.Size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return nil, fmt.Errorf("map shared memory: %w", err)
	}
	return &Memory{bytes: bytes}, nil
}

// Close unmaps the memory. The slots must not be used afterwards. Close of nil does nothing.
func (m *Memory) Close() error {
	if m == nil {
		return nil
	}
	return unix.Munmap(m.bytes)
}

// Send writes p, and the memory with its first byte.
func Send(socket *net.UnixConn, p []byte, memory *os.File) error {
	n, _, err := socket.WriteMsgUnix(p, unix.UnixRights(int(memory.Fd())), nil)
	if err == nil && n < len(p) {
		_, err = socket.Write(p[n:])
	}
	return err
}

// Receive reads the next bytes into p, and the file of a memory that arrives with them, for [Map]. The file is nil if
// there is none.
func Receive(socket *net.UnixConn, p []byte) (n int, memory *os.File, err error) {
	rights := make([]byte, unix.CmsgSpace(4))
	n, size, _, _, err := socket.ReadMsgUnix(p, rights)
	if err != nil {
		return 0, nil, err // n may be below 0
	}
	messages, err := unix.ParseSocketControlMessage(rights[:size])
	if err != nil || len(messages) == 0 {
		return n, nil, err
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		return n, nil, err
	}
	return n, os.NewFile(uintptr(fds[0]), "shared memory"), nil // there is room for one
}
