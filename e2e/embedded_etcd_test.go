package e2e

import (
	"net"
	"path/filepath"
	"syscall"
	"testing"

	"trainmaster/etcdstore/etcdtest"
	"trainmaster/internal/freeport"
)

// F261: the etcd inside a master serves processes at another address, as in a pod. The master is killed in the middle of a pass. Its
// successor with the same directory continues the job at the advertised address, and the other processes find it there.
func TestEmbeddedEtcdServesOtherMachines(t *testing.T) {
	t.Parallel()
	j := &job{t: t, name: "default", dir: t.TempDir()}
	j.data = digits(t, j.dir)
	addr, err := freeport.Addr("127.0.0.2")
	if err != nil {
		t.Fatal(err)
	}
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	data := filepath.Join(j.dir, "data-dir")
	flags := []string{
		"--data-dir", data, "--etcd-listen", "0.0.0.0:" + port, "--etcd-advertise", addr, "--exit-codes", "pod",
		"--listen", "127.0.0.1:0", "--http", "", "--passes", "4", "--ps", "1", "--lease-ttl", "2s", "--chunks-per-task", "1", "--checkpoint-every", "250ms",
	}
	m := start(t, "master", j.dir, flags...)
	m.awaitLog("leading")
	m.awaitLog("no TLS and no authentication")
	j.endpoint = addr
	j.store = etcdtest.Open(t, addr, j.name)
	j.closeAtEnd()
	standby := j.master("--passes", "4", "--ps", "1")
	standby.awaitLog("waiting for the lock")
	standby.signal(syscall.SIGTERM)
	standby.wantExit(0)
	j.server()
	trainers := []*process{j.trainer("a"), j.trainer("b")}
	j.awaitMidPass(2)
	// Another master with the same directory, or with the same port, changes nothing.
	run(t, j.dir, flags...).wants(t, 1, "in use by another process")
	other := append([]string{}, flags...)
	other[1] = filepath.Join(j.dir, "other")
	run(t, j.dir, other...).wants(t, 1, "--etcd-listen 0.0.0.0:"+port, "the port is in use")
	m.kill()
	m = start(t, "master", j.dir, flags...)
	for _, trainer := range trainers {
		trainer.wantExit(0)
	}
	m.wantExit(0)
	run(t, j.dir, "verify", "--data-dir", data).wants(t, 0)
	again := start(t, "master", j.dir, flags...) // a pod of a job that has ended
	again.wantExit(0)
}

func TestEmbeddedEtcdFlagsThatAreRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, c := range []struct {
		says string
		args []string
	}{
		{`"0.0.0.0:2379" for --etcd-listen from the command line: expected it without --endpoints`, []string{"--endpoints", "127.0.0.1:2379", "--etcd-listen", "0.0.0.0:2379"}},
		{"--etcd-listen too", []string{"--etcd-advertise", "10.0.0.1:2379"}},
		{"expected the IP address and port", []string{"--etcd-listen", "somewhere:2379"}},
		{"expected the IP address and port", []string{"--etcd-listen", "127.0.0.2"}},
		{"expected a port", []string{"--etcd-listen", "127.0.0.2:0"}},
		{"that other processes can dial, found 0.0.0.0:2379", []string{"--etcd-listen", "0.0.0.0:2379"}},
		{"that other processes can dial, found 10.0.0.1", []string{"--etcd-listen", "0.0.0.0:2379", "--etcd-advertise", "10.0.0.1"}},
	} {
		run(t, dir, c.args...).wants(t, 2, c.says)
	}
	run(t, dir, "--data-dir", "d", "--etcd-listen", "192.0.2.1:2379").wants(t, 1, "--etcd-listen 192.0.2.1:2379", "expected an address of this machine")
}
