package agent

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// memory is shared memory that only this process can write.
type memory struct {
	fd    int
	bytes []byte
}

// The memory does not change its size, and no other process can map it for writing.
const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_FUTURE_WRITE

// granule is the unit of the size of memory, so that memory fits other chunks of about the same size.
const granule = 1 << 20

// newMemory makes memory of at least size bytes.
func newMemory(size int) (*memory, error) {
	size = (size + granule/4 + granule - 1) / granule * granule
	m, err := makeMemory(size, seals)
	if err != nil {
		return nil, &resourceError{fmt.Errorf("chunk: expected shared memory of %d MiB, found %w: use fewer workers or a smaller shuffle_window, or allow more open files (ulimit -n)", size>>20, err)}
	}
	return m, nil
}

func makeMemory(size, seals int) (*memory, error) {
	fd, err := unix.MemfdCreate("trainmaster-agent", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, err
	}
	m := &memory{fd: fd}
	err = unix.Ftruncate(fd, int64(size))
	if err == nil {
		m.bytes, err = unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}
	if err == nil {
		//guard:chunk-memory-sealed
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
	}
	if err != nil {
		m.release()
		return nil, err
	}
	return m, nil
}

// release unmaps and closes the memory. Other processes can keep it.
func (m *memory) release() {
	if m.bytes != nil {
		_ = unix.Munmap(m.bytes) // it is mapped
		m.bytes = nil
	}
	_ = unix.Close(m.fd)
}

// sendMemory writes bytes of frame, at least one, and the descriptor of the memory with them.
func sendMemory(conn *net.UnixConn, frame []byte, m *memory) (sent int, err error) {
	sent, _, err = conn.WriteMsgUnix(frame, unix.UnixRights(m.fd), nil)
	return sent, err
}

// watchParent returns a channel that is closed when the process dies, although its forks may keep its sockets open. The process must be the
// parent of this one.
func watchParent(pid int) (<-chan struct{}, error) {
	died := make(chan struct{})
	fd, err := unix.PidfdOpen(pid, 0)
	switch {
	case os.Getppid() != pid:
		if err == nil {
			unix.Close(fd)
		}
		close(died) // before it could be watched
		return died, nil
	case err != nil:
		return nil, fmt.Errorf("watch process %d: %w", pid, err)
	}
	go func() {
		for {
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
			if err == nil && n > 0 {
				close(died)
				return
			}
		}
	}()
	return died, nil
}

// isExiting reports that the parent of this process, with a process id, has died or has begun to. The kernel notes the begin before it closes the files
// of the process.
func isExiting(parent int) bool {
	const exiting = 0x4 // PF_EXITING of linux/sched.h
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", parent))
	if os.Getppid() != parent {
		return true
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:])) // after the name; the flags are the seventh
	if err != nil || len(fields) < 7 {
		return false
	}
	flags, err := strconv.ParseUint(fields[6], 10, 64)
	return err == nil && flags&exiting != 0
}

// connectionOf returns the connection of a descriptor that this process has inherited.
func connectionOf(fd int) (*net.UnixConn, error) {
	file := os.NewFile(uintptr(fd), "socket pair")
	if file == nil {
		return nil, fmt.Errorf("descriptor %d: expected an open descriptor", fd)
	}
	defer file.Close()
	conn, err := net.FileConn(file)
	if err != nil {
		return nil, fmt.Errorf("descriptor %d: expected a Unix socket: %w", fd, err)
	}
	unixConn, ok := conn.(*net.UnixConn)
	if !ok {
		conn.Close()
		return nil, fmt.Errorf("descriptor %d: expected a Unix socket, found a socket of %s", fd, conn.LocalAddr().Network())
	}
	return unixConn, nil
}

// unmapStart takes the pages of the program file that its start has used out of the resident memory. The initialization of all packages maps
// most of the program. The kernel maps the pages that the agent needs again, from the page cache.
func unmapStart() error {
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return err
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return err
	}
	for lines := bufio.NewScanner(bytes.NewReader(maps)); lines.Scan(); {
		var begin, end, offset, inode uint64
		var access, device, path string
		n, _ := fmt.Sscanf(lines.Text(), "%x-%x %s %x %s %d %s", &begin, &end, &access, &offset, &device, &inode, &path)
		// A page of a private mapping that cannot be written has the content of the file.
		if n < 7 || path != program || access != "r-xp" && access != "r--p" {
			continue
		}
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, uintptr(begin), uintptr(end-begin), unix.MADV_DONTNEED); errno != 0 {
			return fmt.Errorf("unmap pages of %s: %w", program, errno)
		}
	}
	return nil
}
