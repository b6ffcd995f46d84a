package pserver_test

import (
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"

	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/pserver"
	"trainmaster/pserver/wire"
	"trainmaster/trainer/params"
)

// socketFolder is a directory for sockets; the path of the test's own directory exceeds the limit.
func socketFolder(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "tm")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// theSocket is the only socket in a directory.
func theSocket(t testing.TB, dir string) string {
	t.Helper()
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 1 {
		t.Fatalf("%d files in the directory of sockets (%v), expected one", len(files), err)
	}
	return filepath.Join(dir, files[0].Name())
}

// connectLogged connects a trainer of the model in tensors and returns the log of the connection.
func connectLogged(t testing.TB, b *book, timeout time.Duration) (c *params.Client, log string) {
	t.Helper()
	logger, hook := logtest.NewNullLogger()
	logger.SetLevel(logrus.DebugLevel)
	c, err := params.Connect(within(t), params.Config{
		Addrs: b.complete, Log: logrus.NewEntry(logger), Mode: params.Async, Optimizer: plainSGD,
		Ordinal: 7, Incarnation: 7, ReplyTimeout: timeout, RetryMin: time.Millisecond, RetryMax: 10 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	mustInit(t, c, tensors(constant(1)))
	for _, e := range hook.AllEntries() {
		if e.Data["socket"] != nil {
			log += e.Message + "\n"
		}
	}
	return c, log
}

// onlyOne waits until a server has one data connection: the one through the socket.
func onlyOne(t testing.TB, addr string) {
	t.Helper()
	client := control(t, addr)
	for connections := uint64(0); connections != 1; {
		reply, err := client.Describe(within(t), &pb.DescribeRequest{})
		must(t, err)
		connections = reply.GetCounters().GetConnections()
	}
}

const (
	bySocket    = "using the data socket"
	byTCP       = "using TCP"
	elsewhere   = "is on another machine"
	noWay       = "no way through the data socket"
	quickAnswer = 300 * time.Millisecond
)

func TestTrainersOnTheSameMachineUseTheSocket(t *testing.T) {
	dir := socketFolder(t)
	b := newBook(1)
	server := startServer(t, b, 0, pserver.Config{DataSocket: dir})
	path := theSocket(t, dir)
	if info, err := os.Stat(path); err != nil || info.Mode() != fs.ModeSocket|0o600 {
		t.Errorf("socket is %v, %v; expected mode 0600", info.Mode(), err)
	}
	c, log := connectLogged(t, b, 0)
	if !strings.Contains(log, bySocket) {
		t.Errorf("log of the trainer: %q", log)
	}
	unchanged(t, c)
	onlyOne(t, server.addr)
	server.stop()
	if err := server.wait(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket outlives its server: %v", err)
	}
}

// If the socket file is invalid, the trainer uses TCP, and no other server accepts its hello.
func TestSocketsThatAreNotTheServers(t *testing.T) {
	for name, try := range map[string]struct {
		spoil func(t *testing.T, path string)
		says  string
	}{
		"not there": {func(t *testing.T, path string) { must(t, os.Remove(path)) }, elsewhere},
		"no socket": {func(t *testing.T, path string) {
			must(t, os.Remove(path))
			must(t, os.WriteFile(path, nil, 0o600))
		}, noWay},
		"no listener": {func(t *testing.T, path string) {
			must(t, os.Remove(path))
			l := listenUnix(t, path)
			l.SetUnlinkOnClose(false)
			must(t, l.Close())
		}, noWay},
		"silent": {func(t *testing.T, path string) {
			must(t, os.Remove(path))
			listenUnix(t, path)
		}, noWay},
		"impostor": {impostor, noWay},
		"other server": {func(t *testing.T, path string) {
			dir := socketFolder(t)
			other := newBook(1)
			server := startServer(t, other, 0, pserver.Config{DataSocket: dir})
			connectLogged(t, other, 0)
			must(t, os.Rename(theSocket(t, dir), path))
			t.Cleanup(func() {
				// It would be fenced if the other server had taken a hello of a newer incarnation.
				p := dial(t, server.addr).sayHello(7, 7)
				head := p.head
				head.Op, head.Block, head.Step = wire.Push, blockB1, 1
				if _, _, err := p.ask(head, payloadOf(lenB1, 1)); err != nil {
					t.Errorf("the other server's trainer: %v", err)
				}
			})
		}, noWay},
	} {
		t.Run(name, func(t *testing.T) {
			dir := socketFolder(t)
			b := startServers(t, 1, pserver.Config{DataSocket: dir})
			try.spoil(t, theSocket(t, dir))
			c, log := connectLogged(t, b, quickAnswer)
			if !strings.Contains(log, try.says) || !strings.Contains(log, byTCP) || strings.Contains(log, bySocket) {
				t.Errorf("log of the trainer: %q, expected %q", log, try.says)
			}
			unchanged(t, c)
		})
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func listenUnix(t testing.TB, path string) *net.UnixListener {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	must(t, err)
	t.Cleanup(func() { l.Close() })
	return l
}

// impostor listens at path and answers every hello kindly, under another name.
func impostor(t *testing.T, path string) {
	must(t, os.Remove(path))
	l := listenUnix(t, path)
	done := make(chan struct{})
	t.Cleanup(func() { l.Close(); <-done })
	go func() {
		defer close(done)
		nc, err := l.Accept()
		if err != nil {
			return
		}
		defer nc.Close()
		var raw [wire.HeaderSize]byte
		var head wire.Header
		if _, err := io.ReadFull(nc, raw[:]); err != nil || head.Decode(&raw) != nil {
			return
		}
		io.CopyN(io.Discard, nc, int64(head.Length)) //nolint:errcheck // the trainer will say
		head.Flags = wire.Reply
		nc.Write(frame(head, wire.Offer{Server: wire.Identity{1, 2, 3}, Path: path}.Append(nil))) //nolint:errcheck // the same
		io.Copy(io.Discard, nc)                                                                   //nolint:errcheck // until the trainer leaves
	}()
}

// A hello that is meant for another server is refused, over TCP too.
func TestHelloForAnotherServer(t *testing.T) {
	addr, c := ready(t, pserver.Config{})
	p := dial(t, addr).sayHello(1, 1)
	digest := append(modelDigest(t), make([]byte, 16)...)
	_, _, err := dial(t, addr).ask(wire.Header{Op: wire.Hello, Block: 1, Incarnation: 9}, digest)
	var fault *wire.Fault
	if !errors.As(err, &fault) || fault.Code != wire.WrongShard {
		t.Errorf("answered %v, expected %v", err, wire.WrongShard)
	}
	head := p.head
	head.Op, head.Block, head.DType = wire.Pull, blockB1, wire.Bytes
	if _, _, err := p.ask(head, nil); err != nil {
		t.Errorf("the first trainer: %v", err)
	}
	unchanged(t, c)
}

func TestNoSocket(t *testing.T) {
	b := startServers(t, 1, pserver.Config{DataSocket: pserver.SocketOff})
	c, log := connectLogged(t, b, 0)
	if log != "" {
		t.Errorf("log of the trainer: %q", log)
	}
	unchanged(t, c)
}

// A server removes the sockets that killed servers left. Sockets of running servers stay.
func TestSocketsOfKilledServersAreReplaced(t *testing.T) {
	dir := socketFolder(t)
	b := newBook(2)
	alive := startServer(t, b, 0, pserver.Config{DataSocket: dir})
	living := theSocket(t, dir)
	killed := startChild(t, b, childConfig{Index: 1, Sockets: dir})
	_, err := b.complete(within(t))
	must(t, err)
	killed.kill()
	count := func() int {
		files, err := filepath.Glob(filepath.Join(dir, "*"))
		must(t, err)
		return len(files)
	}
	if n := count(); n != 2 {
		t.Fatalf("%d sockets after the kill, expected the living server's and the killed one's", n)
	}
	stranger := filepath.Join(dir, "else.sock")
	l := listenUnix(t, stranger)
	l.SetUnlinkOnClose(false)
	must(t, l.Close())
	startServer(t, b, 1, pserver.Config{DataSocket: dir})
	if n := count(); n != 3 {
		t.Errorf("%d files after the restart, expected two sockets and another program's", n)
	}
	if _, err := os.Stat(living); err != nil {
		t.Errorf("the living server's socket: %v", err)
	}
	if _, log := connectLogged(t, b, 0); strings.Count(log, bySocket) != 2 {
		t.Errorf("log of the trainer: %q", log)
	}
	alive.stop()
}

// Connections through the socket and through the port count together.
func TestSocketAndPortShareTheLimit(t *testing.T) {
	const limit = 5
	addr, _ := ready(t, pserver.Config{MaxConnections: limit})
	path := offerOf(t, addr).Path
	onlyOne(t, addr)
	admitted := func(addr string) bool {
		p := dial(t, addr)
		head := wire.Header{Op: wire.Hello, Incarnation: 1}
		if _, err := p.nc.Write(frame(head, make([]byte, wire.DigestSize))); err != nil {
			return false
		}
		// An admitted connection receives an answer about another model and stays open.
		_, err := io.ReadFull(p.nc, make([]byte, 1))
		return err == nil
	}
	for range 2 * limit {
		dial(t, path) // silent
	}
	if admitted(path) {
		t.Errorf("more than %d connections through the socket", limit)
	}
	if admitted(addr) {
		t.Errorf("a connection through the port, besides %d through the socket", limit)
	}
}

func TestFoldersThatSocketsCannotBeIn(t *testing.T) {
	open := socketFolder(t)
	must(t, os.Chmod(open, 0o755))
	file := filepath.Join(socketFolder(t), "file")
	must(t, os.WriteFile(file, nil, 0o600))
	link := filepath.Join(socketFolder(t), "link")
	must(t, os.Symlink(socketFolder(t), link))
	long := filepath.Join(socketFolder(t), strings.Repeat("x", 100))
	for name, try := range map[string]struct{ dir, text string }{
		"open to others": {open, "mode 0700"},
		"file":           {file, "not a directory"},
		"link":           {link, "expected a directory"},
		"too long":       {long, "choose a directory with a shorter name"},
		"relative":       {"sockets", "absolute path"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := pserver.New(pserver.Config{Registry: newBook(1).place(0), DataSocket: try.dir, Log: quiet()})
			if err == nil || !strings.Contains(err.Error(), try.text) {
				t.Errorf("error %v, expected %q in it", err, try.text)
			}
		})
	}
	// The default is optional: the server runs without a socket.
	t.Setenv("TMPDIR", long)
	b := startServers(t, 1, pserver.Config{})
	c, log := connectLogged(t, b, 0)
	if log != "" {
		t.Errorf("log of the trainer: %q", log)
	}
	unchanged(t, c)
}
