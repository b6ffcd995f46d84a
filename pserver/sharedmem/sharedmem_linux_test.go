package sharedmem_test

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"trainmaster/pserver/sharedmem"
)

// sockets are the two ends of a unix socket.
func sockets(t *testing.T) (a, b *net.UnixConn) {
	t.Helper()
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	nc, err := net.Dial("unix", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	other, err := listener.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close(); other.Close() })
	return sharedmem.Through(nc), other
}

// create is memory of 3 slots with its file.
func create(t *testing.T) (*sharedmem.Memory, *os.File) {
	t.Helper()
	m, file, err := sharedmem.Create(3)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close(); file.Close() })
	return m, file
}

func TestBothSidesSeeTheSame(t *testing.T) {
	here, there := sockets(t)
	m, file := create(t)
	if err := sharedmem.Send(here, []byte("hello"), file); err != nil {
		t.Fatal(err)
	}
	text := make([]byte, 10)
	n, received, err := sharedmem.Receive(there, text)
	if err != nil || string(text[:n]) != "hello" || received == nil {
		t.Fatalf("received %q and %v, %v", text[:n], received, err)
	}
	defer received.Close()
	theirs, err := sharedmem.Map(received, 3)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		m.Floats(i)[sharedmem.SlotBytes/4-1] = float32(i) + 1
	}
	for i := range 3 {
		if got := theirs.Floats(i)[sharedmem.SlotBytes/4-1]; got != float32(i)+1 {
			t.Errorf("slot %d ends in %v, expected %v", i, got, i+1)
		}
		if next := m.Next(); next != i {
			t.Errorf("frame %d uses slot %d", i, next)
		}
	}
	if next := m.Next(); next != 0 {
		t.Errorf("frame 3 uses slot %d, expected 0", next)
	}
	if err := theirs.Close(); err != nil {
		t.Error(err)
	}
	if m.Floats(0)[sharedmem.SlotBytes/4-1] != 1 {
		t.Error("the memory is gone with one of its sides")
	}
	if _, err := here.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if n, none, err := sharedmem.Receive(there, text); n != 1 || none != nil || err != nil {
		t.Errorf("bytes alone came as %d with %v, %v", n, none, err)
	}
}

// A peer that could make the memory smaller could end the other side by a signal.
func TestPeerCannotShrinkMemory(t *testing.T) {
	_, file := create(t)
	for _, size := range []int64{0, sharedmem.SlotBytes, 4 * sharedmem.SlotBytes} {
		if err := file.Truncate(size); err == nil {
			t.Errorf("memory of 3 slots has %d bytes now", size)
		}
	}
	if _, err := unix.FcntlInt(file.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_WRITE); err == nil {
		t.Error("a seal can be added")
	}
}

func TestMemoryThatIsNotWhatItShouldBe(t *testing.T) {
	_, good := create(t)
	plain, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	if err := plain.Truncate(3 * sharedmem.SlotBytes); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.MemfdCreate("open", unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	open := os.NewFile(uintptr(fd), "open")
	defer open.Close()
	if err := open.Truncate(3 * sharedmem.SlotBytes); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		file  *os.File
		slots int
		says  string
	}{
		"other size": {good, 2, "has 3145728 bytes, expected 2097152 for 2 slots"},
		"no slots":   {good, 0, "of 0 slots: expected 1 to 64"},
		"many slots": {good, 1 << 30, "expected 1 to 64"},
		"a file":     {plain, 3, "seals"},
		"no seals":   {open, 3, "without which a peer could take it away"},
	} {
		t.Run(name, func(t *testing.T) {
			if m, err := sharedmem.Map(c.file, c.slots); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("mapped it: %t; error %v, expected %q", m != nil, err, c.says)
			}
		})
	}
	if _, _, err := sharedmem.Create(sharedmem.MaxSlots + 1); err == nil {
		t.Error("memory of more slots than allowed was made")
	}
}

func TestSlotsDoNotOverlap(t *testing.T) {
	m, _ := create(t)
	for i := range m.Slots() {
		slot := m.Slot(i)
		if cap(slot) != sharedmem.SlotBytes {
			t.Errorf("slot %d has room for %d bytes", i, cap(slot))
		}
		copy(slot, bytes.Repeat([]byte{byte(i + 1)}, sharedmem.SlotBytes))
	}
	for i := range m.Slots() {
		if slot := m.Slot(i); bytes.Count(slot, []byte{byte(i + 1)}) != sharedmem.SlotBytes {
			t.Errorf("slot %d has bytes of another one", i)
		}
	}
}
