package e2e

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"trainmaster/etcdstore/etcdtest"
	pb "trainmaster/proto/trainmaster/v1"
)

// machine is a network namespace that is connected to this namespace.
type machine struct {
	t    testing.TB
	name string
	here string // address in this namespace
	addr string // address in the machine
}

// newMachine creates a machine. It skips the test if that is not possible.
func newMachine(t testing.TB) machine {
	t.Helper()
	id := os.Getpid() % (1 << 14)
	m := machine{t: t, name: fmt.Sprintf("tm%d", id), here: fmt.Sprintf("10.213.%d.%d", id>>6, id<<2&0xff|1), addr: fmt.Sprintf("10.213.%d.%d", id>>6, id<<2&0xff|2)}
	for _, program := range []string{"ip", "nft"} {
		if _, err := exec.LookPath(program); err != nil {
			m.lacks("the program " + program + ", which scripts/setup.sh installs for root")
		}
	}
	if text, err := exec.Command("ip", "netns", "add", m.name).CombinedOutput(); err != nil {
		m.lacks(fmt.Sprintf("root, and a kernel that lets it make network namespaces: %s", text))
	}
	t.Cleanup(func() { _ = exec.Command("ip", "netns", "del", m.name).Run() }) // deletes the link as well
	peer := m.name + "p"
	m.run("ip", "link", "add", m.name, "type", "veth", "peer", "name", peer, "netns", m.name)
	m.run("ip", "addr", "add", m.here+"/30", "dev", m.name)
	m.run("ip", "link", "set", m.name, "up")
	m.inside("ip", "addr", "add", m.addr+"/30", "dev", peer)
	m.inside("ip", "link", "set", peer, "up")
	m.inside("ip", "link", "set", "lo", "up")
	m.inside("nft", "add", "table", "inet", "cable")
	for _, hook := range []string{"input", "output"} {
		m.inside("nft", "add", "chain", "inet", "cable", hook, "{", "type", "filter", "hook", hook, "priority", "0", ";", "}")
	}
	return m
}

// lacks skips the test. With REQUIRE=all it fails the test.
func (m machine) lacks(what string) {
	m.t.Helper()
	if os.Getenv("REQUIRE") == "all" {
		m.t.Fatalf("needs %s", what)
	}
	m.t.Skipf("needs %s", what)
}

func (m machine) run(words ...string) {
	m.t.Helper()
	if text, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
		m.t.Fatalf("%s: %v: %s", strings.Join(words, " "), err, text)
	}
}

func (m machine) inside(words ...string) {
	m.t.Helper()
	m.run(append([]string{"ip", "netns", "exec", m.name}, words...)...)
}

// drop drops all packets to and from a port of other machines, or all packets if port is empty.
func (m machine) drop(port string) {
	m.t.Helper()
	for hook, direction := range map[string]string{"input": "sport", "output": "dport"} {
		rule := []string{"nft", "add", "rule", "inet", "cable", hook}
		if port != "" {
			rule = append(rule, "tcp", direction, port)
		}
		m.inside(append(rule, "drop")...)
	}
}

// restore removes all drop rules.
func (m machine) restore() {
	m.t.Helper()
	m.inside("nft", "flush", "table", "inet", "cable")
}

// masterIn starts a master on a machine.
func (j *job) masterIn(m machine, args ...string) *process {
	j.t.Helper()
	return startBy(j.t, []string{"ip", "netns", "exec", m.name}, "far", j.dir, j.in(append([]string{"--http", "", "--chunks-per-task", "1"}, args...)...)...)
}

// F6: the leader's machine loses all packets, first to etcd only, then all. The standby on the other machine takes over, and
// the trainers follow it. A former leader whose network returns has lost its term.
func TestPartition(t *testing.T) {
	t.Parallel()
	const passes = 6
	m := newMachine(t)
	etcd := etcdtest.StartOn(t, m.here)
	_, port, err := net.SplitHostPort(strings.TrimPrefix(etcd.Endpoint(), "http://"))
	if err != nil {
		t.Fatal(err)
	}
	j := newJobOn(t, etcd.Endpoint())
	flags := []string{"--passes", "6", "--ps", "1", "--holddown", "2s", "--lease-ttl", "4s"}
	far := j.masterIn(m, append(flags, "--listen", m.addr+":0")...)
	term := j.awaitLeader(0)
	near := j.master(append(flags, "--listen", m.here+":0")...)
	near.awaitLog("standby is warm")
	j.server("--listen", m.here+":0") // both masters reach it
	trainers := []*process{j.trainer("a", "--record-delay", "2ms"), j.trainer("b", "--record-delay", "2ms")}

	j.awaitMidPass(1)
	led := j.awaitStatus("a leader", func(*pb.StatusReply) bool { return true }).LeaderAddress
	m.drop(port)
	term = j.awaitLeader(term)
	j.wantNotLeader(led)
	j.awaitMidPass(2)
	m.restore()
	far.awaitLog("waiting for the lock")

	near.signal(syscall.SIGTERM)
	near.wantExit(0)
	term = j.awaitLeader(term)
	near = j.master(append(flags, "--listen", m.here+":0")...)
	near.awaitLog("standby is warm")
	j.awaitMidPass(3)
	m.drop("")
	j.awaitLeader(term)
	for _, trainer := range trainers {
		trainer.wantExit(0)
	}
	near.wantExit(0)
	m.restore()
	j.wantExactlyOnce(passes, tasksPerPass)
}
