package arena

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// memory is shared memory that both processes can write. It does not shrink.
type memory struct {
	fd    int
	bytes []byte
}

// The seals of memory, by whether its size is fixed.
const (
	growing = unix.F_SEAL_SHRINK
	fixed   = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
)

func newMemory(size int64, seals int) (*memory, error) {
	fd, err := unix.MemfdCreate("trainmaster-arena", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("make shared memory: %w", err)
	}
	m := &memory{fd: fd}
	err = unix.Ftruncate(fd, size)
	if err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
	}
	if err == nil {
		m.bytes, err = unix.Mmap(fd, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}
	if err == nil {
		_ = unix.Madvise(m.bytes, unix.MADV_HUGEPAGE) // it is faster where the kernel has huge pages for shared memory
	}
	if err != nil {
		m.release()
		return nil, fmt.Errorf("make shared memory of %d MiB for parameters, gradients and rows: %w", size>>20, err)
	}
	return m, nil
}

// grow makes the memory at least as large as size. Other mappings of its begin stay valid.
func (m *memory) grow(size int64) error {
	if size <= int64(len(m.bytes)) {
		return nil
	}
	err := unix.Ftruncate(m.fd, size)
	var bytes []byte
	if err == nil {
		bytes, err = unix.Mmap(m.fd, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}
	if err != nil {
		return fmt.Errorf("grow shared memory to %d MiB for rows: %w", size>>20, err)
	}
	_ = unix.Munmap(m.bytes) // it is mapped
	m.bytes = bytes
	return nil
}

func (m *memory) release() {
	if m.bytes != nil {
		_ = unix.Munmap(m.bytes) // it is mapped
		m.bytes = nil
	}
	_ = unix.Close(m.fd)
}
