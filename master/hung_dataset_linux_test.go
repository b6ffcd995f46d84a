package master_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"trainmaster/etcdstore/etcdtest"
	"trainmaster/master"
	"trainmaster/master/mastertest"
	"trainmaster/taskqueue"
)

// hungDir mounts a file system that answers nothing, FUSE without a server, until release.
func hungDir(t *testing.T) (dir string, release func()) {
	t.Helper()
	dir = t.TempDir()
	device, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err == nil {
		err = syscall.Mount("hung", dir, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", device.Fd()))
	}
	if err != nil {
		missing := "a file system that hangs is missing: FUSE needs root and /dev/fuse: " + err.Error()
		if os.Getenv("REQUIRE") == "all" {
			t.Fatal(missing)
		}
		t.Skip(missing)
	}
	return dir, func() {
		device.Close()
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}
}

// A file system that hangs while the master lists the files of a dataset does not keep the lock. Appends and closes end with the
// time limit of their callers.
func TestHungDatasetDoesNotKeepTheLock(t *testing.T) {
	for _, online := range []bool{false, true} {
		t.Run(fmt.Sprint("online ", online), func(t *testing.T) {
			dir, release := hungDir(t)
			config := master.Config{Datasets: []master.Dataset{{SetSpec: taskqueue.SetSpec{Name: "clicks", Online: online}, Paths: []string{filepath.Join(dir, "part-*")}, From: "--dataset clicks"}}}
			m := mastertest.Start(t, etcdtest.Store(t), config)
			defer release()
			for what, call := range map[string]func(context.Context) error{
				"append": func(ctx context.Context) error {
					_, err := m.AppendDataset(ctx, "clicks", []string{filepath.Join(dir, "part-1")})
					return err
				},
				"close": func(ctx context.Context) error {
					_, err := m.CloseDataset(ctx, "clicks")
					return err
				},
			} {
				ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
				if err := ends(t, what, func() error { return call(ctx) }); err == nil {
					t.Errorf("%s: expected an error", what)
				}
				cancel()
			}
			if err := ends(t, "master", m.Stop); err != nil {
				t.Error(err)
			}
		})
	}
}

// ends fails the test if a call does not end.
func ends(t *testing.T, what string, call func() error) error {
	t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- call() }()
	select {
	case err := <-ended:
		return err
	case <-time.After(20 * time.Second):
		t.Fatalf("%s: expected its end within 20 s", what)
		return nil
	}
}
