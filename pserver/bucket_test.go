package pserver_test

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"trainmaster/internal/objectstore/s3test"
	"trainmaster/internal/tcpproxy"
	"trainmaster/master/pscontrol"
	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/pserver"
	"trainmaster/pserver/checkpoint"
	"trainmaster/trainer/params"
)

// bucketBehind is a bucket, and the proxy through which servers reach it.
func bucketBehind(t testing.TB) (where string, s *s3test.Server, proxy *tcpproxy.Proxy) {
	t.Helper()
	s = s3test.Start(t)
	proxy, err := tcpproxy.New(s.Addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(proxy.Close)
	return s3test.URLAt(proxy.Addr(), "job"), s, proxy
}

func cutOff(proxy *tcpproxy.Proxy) {
	proxy.Refuse(true)
	proxy.Cut()
}

// F51, in a bucket: an unavailable store costs a set and nothing else. The error is reported, training continues, earlier sets stay
// whole, and a new set follows when the store is back.
func TestStoreIsAway(t *testing.T) {
	where, s, proxy := bucketBehind(t)
	start, grads := small(random(1)), small(random(2))
	c, client := trainedCluster(t, where, start)
	mustPush(t, client, 1, grads)
	first := c.mustTake(t)
	kept := filesIn(t, s.Path("job"))

	step := uint64(1)
	fail := func(what string, breakIt func()) {
		t.Helper()
		cut, err := c.begin(within(t))
		if err != nil {
			t.Fatal(err)
		}
		breakIt()
		if _, err := c.write(within(t), cut); err == nil || !strings.Contains(err.Error(), "does not answer") {
			t.Errorf("%s: a set was written: %v", what, err)
		}
		reply, err := control(t, c.servers[0].addr).Describe(within(t), &pb.DescribeRequest{})
		if err != nil || !strings.Contains(reply.GetCheckpointError(), "does not answer") || !strings.Contains(reply.GetCheckpointError(), "s3://checkpoints/job/ps-0/") {
			t.Errorf("%s: described as %q, %v", what, reply.GetCheckpointError(), err)
		}
		step++
		mustPush(t, client, step, grads)
	}
	fail("the store is away", func() { cutOff(proxy) })
	fail("it is still away", func() {})
	after := filesIn(t, s.Path("job"))
	for name, data := range kept {
		if after[name] != data {
			t.Errorf("%s of the set before is another one, or gone", name)
		}
	}
	proxy.Refuse(false)
	latest := c.mustTake(t)
	if string(latest) == string(first) {
		t.Error("no other set after the store came back")
	}
	c.leave(t)
	c = startCluster(t, where, 2, latest)
	wantModel(t, "the set after", c.book, start, grads, int(step))
}

// filesIn reads all files below a directory.
func filesIn(t testing.TB, dir string) map[string]string {
	t.Helper()
	found := map[string]string{}
	if err := fs.WalkDir(os.DirFS(dir), ".", func(name string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) { // the store has just removed it
			return nil
		}
		if err != nil || e.IsDir() {
			return err
		}
		data, err := os.ReadFile(filepath.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		found[name] = string(data)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return found
}

// F51, at a start: a server that cannot read the newest set uses no older set and does not start empty. It ends with the reason.
func TestStoreIsAwayAtAStart(t *testing.T) {
	where, s, proxy := bucketBehind(t)
	start, grads := small(random(1)), small(random(2))
	c, client := trainedCluster(t, where, start)
	var set []byte
	for step := uint64(1); step <= 2; step++ {
		mustPush(t, client, step, grads)
		set = c.mustTake(t)
	}
	c.leave(t)
	parsed, err := checkpoint.ParseSet(set)
	if err != nil {
		t.Fatal(err)
	}

	ends := func(what, why string) {
		t.Helper()
		b := newBook(2)
		b.job = pserver.JobState{LatestSet: set}
		server := startServer(t, b, 0, pserver.Config{CheckpointDir: where})
		if err := server.wait(); !errors.Is(err, checkpoint.ErrUnavailable) || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v", what, err)
		}
	}
	cutOff(proxy)
	ends("nothing answers", "does not answer")
	proxy.Refuse(false)
	// The gateway cannot read one object of the newest set: its access rights are the rights of its files.
	weights := s.Path("job/ps-1/" + parsed.Shards[1].Generation.String() + "/" + checkpoint.WeightsFile)
	hidden := hide(t, weights)
	ends("an object cannot be read", "the store refused")
	hidden()
	c = startCluster(t, where, 2, set)
	wantModel(t, "the store is whole again", c.book, start, grads, 2)
}

// hide makes a file unreadable for the gateway: it becomes a link to itself.
func hide(t testing.TB, path string) (show func()) {
	t.Helper()
	if err := errors.Join(os.Rename(path, path+".hidden"), os.Symlink(path, path)); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := os.Rename(path+".hidden", path); err != nil {
			t.Fatal(err)
		}
	}
}

// F50, during an upload: a server is killed or cut off when a part of a large object has arrived. The previous set stays, and the
// part is removed with the next set.
func TestKilledInAnUpload(t *testing.T) {
	where, s, proxy := bucketBehind(t)
	b := newBook(1)
	victim := startChild(t, b, childConfig{Dir: where})
	c := connect(t, b, params.Config{Mode: params.Async, Optimizer: plainSGD})
	model := func(value float32) []params.Tensor {
		return modelOf(constant(value), params.Tensor{Name: "w", Shape: []int{12 << 20}}) // 48 MiB: six parts
	}
	values := model(1)
	mustInit(t, c, values)
	taken := newSetTaker(t, b)
	if _, err := taken.take(within(t)); err != nil {
		t.Fatal(err)
	}
	set := b.state().LatestSet
	if _, err := c.PushPull(within(t), 1, 1, model(2), values); err != nil { // 1 - 0.5 * 2
		t.Fatal(err)
	}
	before := len(filesIn(t, s.Path("")))
	proxy.Delay(20*time.Millisecond, 0) // so that there is a middle
	cut, err := taken.begin(within(t))
	if err != nil {
		t.Fatal(err)
	}
	go cut.Write(within(t), pscontrol.About{Job: "test"}) //nolint:errcheck // the server is killed during the call
	for len(filesIn(t, s.Path(""))) < before+2 {          // the claim, and a part
		time.Sleep(5 * time.Millisecond)
	}
	victim.cmd.Process.Signal(syscall.SIGKILL)
	<-victim.gone
	proxy.Delay(0, 0)

	b.mu.Lock()
	b.job = pserver.JobState{LatestSet: set}
	b.mu.Unlock()
	startChild(t, b, childConfig{Dir: where, Job: b.state()})
	mustInit(t, c, values)
	if err := differ(values, model(1)); err != nil {
		t.Errorf("restored %v", err)
	}
	isOfUpload := func(name string) bool {
		return strings.Contains(name, "multipart") || strings.Contains(name, ".sgwtmp")
	}
	for end := time.Now().Add(time.Minute); ; { // the store may take the last part in after its sender is dead
		if _, err := taken.take(within(t)); err != nil {
			t.Fatal(err)
		}
		left := slices.DeleteFunc(slices.Collect(maps.Keys(filesIn(t, s.Path("")))), func(name string) bool { return !isOfUpload(name) })
		if len(left) == 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("left of the upload: %v", left)
		}
	}
}
