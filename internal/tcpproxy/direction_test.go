package tcpproxy

import (
	"bytes"
	"io"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// between is a way that runs, in a bubble's time, with the ends that a sender and a receiver have.
func between(t *testing.T, v valve) (w *direction, sender, receiver net.Conn) {
	sender, from := net.Pipe()
	to, receiver := net.Pipe()
	w = newWay(from, to, v)
	var wg sync.WaitGroup
	wg.Go(w.fill)
	wg.Go(func() {
		defer to.Close()
		w.drain()
	})
	t.Cleanup(func() {
		w.close()
		receiver.Close()
		wg.Wait()
	})
	return w, sender, receiver
}

// Each byte is late by the delay, to the moment, and no byte waits for one before it.
func TestDelayIsPipelined(t *testing.T) {
	const (
		writes = 1000
		pause  = time.Millisecond
	)
	for _, delay := range []time.Duration{0, time.Second} {
		synctest.Test(t, func(t *testing.T) {
			_, sender, receiver := between(t, valve{delay: delay})
			began := time.Now()
			go func() {
				for i := range writes {
					if _, err := sender.Write([]byte{byte(i)}); err != nil {
						t.Error(err)
					}
					time.Sleep(pause)
				}
				sender.Close()
			}()
			got := make([]byte, 1)
			for i := range writes {
				if _, err := io.ReadFull(receiver, got); err != nil || got[0] != byte(i) {
					t.Fatalf("write %d arrived as %d, %v", i, got[0], err)
				}
				if late := time.Since(began) - time.Duration(i)*pause; late != delay {
					t.Fatalf("write %d was %v late, expected %v", i, late, delay)
				}
			}
			if _, err := receiver.Read(got); err != io.EOF || time.Since(began) != writes*pause+delay {
				t.Errorf("after %v: %v, expected the end %v after it was sent", time.Since(began), err, delay)
			}
		})
	}
}

// A sender waits while the window is full, and continues when there is room.
func TestWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, sender, receiver := between(t, valve{delay: time.Hour})
		sent := sendMuch(t, sender)
		synctest.Wait()
		wantWindow(t, w)
		wantAll(t, receiver, sent)
	})
}

// Held bytes have no limit, also if the receiver did not read before.
func TestHeldIsUnbounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, sender, receiver := between(t, valve{})
		sent := sendMuch(t, sender)
		synctest.Wait()
		wantWindow(t, w)
		w.set(valve{blocked: true})
		synctest.Wait()
		held := w.queued()
		written := make([]byte, len(sent)-held) // or being written when the valve was shut
		if _, err := io.ReadFull(receiver, written); err != nil || !bytes.Equal(written, sent[:len(written)]) {
			t.Errorf("%d bytes that were not held did not come as they were sent: %v", len(written), err)
		}
		synctest.Wait()
		if n := w.queued(); n != held {
			t.Errorf("%d bytes are held, and %d later", held, n)
		}
		w.set(valve{})
		wantAll(t, receiver, sent[len(written):])
	})
}

// sendMuch sends more than the window, and then the end.
func sendMuch(t *testing.T, sender net.Conn) []byte {
	much := slices.Repeat([]byte("0123456789abcdef"), 2*window/16)
	go func() {
		if _, err := sender.Write(much); err != nil {
			t.Error(err)
		}
		sender.Close()
	}()
	return much
}

func wantWindow(t *testing.T, w *direction) {
	t.Helper()
	if n := w.queued(); n < window || n >= window+readSize {
		t.Errorf("%d bytes are under way, expected %d and not many more", n, window)
	}
}

func wantAll(t *testing.T, receiver net.Conn, sent []byte) {
	t.Helper()
	if got, err := io.ReadAll(receiver); err != nil || !bytes.Equal(got, sent) {
		t.Errorf("%d bytes came, %v, expected the %d that were sent", len(got), err, len(sent))
	}
}

// Held bytes are lost, and so are bytes that are read after the way was closed: the count returns to 0.
func TestClosedWayKeepsNothing(t *testing.T) {
	from, _ := net.Pipe()
	w := newWay(from, nil, valve{blocked: true})
	if !w.put(parcel{bytes: []byte("held")}) || w.queued() != len("held") {
		t.Fatalf("%d bytes are held", w.queued())
	}
	w.close()
	w.set(valve{})
	if w.put(parcel{bytes: []byte("late")}) || w.queued() != 0 {
		t.Errorf("a closed way keeps %d bytes", w.queued())
	}
	if due, ok := w.take(); ok || len(due) > 0 {
		t.Errorf("a closed way passes on %q", due)
	}
}
