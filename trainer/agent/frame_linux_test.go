package agent

import (
	"net"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// F562: two replies have tasks, and the second is written while the first is numbered. The SDK ignores numbers up to the largest that it has received.
func TestNumbersGrowInTheOrderOfReplies(t *testing.T) {
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: filepath.Join(t.TempDir(), "s")})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	theirs, err := net.DialUnix("unix", nil, listener.Addr().(*net.UnixAddr))
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	ours, err := listener.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	s, last, written := newStream(ours), 0, make(chan error, 1)
	numbered := func(during func()) reply {
		content := &nextReply{Tasks: make([]task, 1)}
		return reply{content: content, number: func() {
			last++
			content.Tasks[0].ID = last
			during()
		}}
	}
	first := numbered(func() {
		go func() { written <- s.write(2, numbered(func() {})) }()
		select {
		case err := <-written:
			written <- err
		case <-time.After(200 * time.Millisecond):
		}
	})
	if err := s.write(1, first); err != nil {
		t.Fatal(err)
	}
	if err := <-written; err != nil {
		t.Fatal(err)
	}
	in := newStream(theirs)
	var found []string
	for range 2 {
		body, err := in.read()
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, string(body[:len(`{"id":1,"tasks":[{"id":1`)]))
	}
	if want := []string{`{"id":1,"tasks":[{"id":1`, `{"id":2,"tasks":[{"id":2`}; !slices.Equal(found, want) {
		t.Errorf("expected %q, found %q", want, found)
	}
}
