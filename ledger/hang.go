package ledger

import (
	"context"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
)

// hangLimit is how long one access to the ledger's directory may take before the log and the status say that the directory does not answer.
const hangLimit = 10 * time.Second

// hang is the state of a directory whose file system may not answer. No context ends a system call, so a failure may never come.
type hang struct {
	mu     sync.Mutex
	began  time.Time // start of the access that takes longer than hangLimit; zero: none does
	logged bool      // in this round
}

// access runs call, which accesses the directory, and notes if it takes longer than hangLimit.
func (h *hang) access(log *logrus.Entry, directory string, call func() error) error {
	began, ended := time.Now(), false
	//guard:ledger-hang-limit
	timer := time.AfterFunc(hangLimit, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if ended {
			return
		}
		h.began = began
		if !h.logged {
			log.WithField("directory", directory).WithField("for", hangLimit.String()).Error("ledger directory does not answer, entries stay in etcd")
		}
		h.logged = true
	})
	defer timer.Stop()
	defer func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.began, ended = time.Time{}, true
	}()
	return call()
}

// roundEnded logs once that the directory answers again if this round logged that it does not.
func (h *hang) roundEnded(log *logrus.Entry, directory string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.logged {
		log.WithField("directory", directory).Info("ledger directory answers again")
	}
	h.logged = false
}

// lasts returns how long the directory has not answered; 0: it answers.
func (h *hang) lasts() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.began.IsZero() {
		return 0
	}
	return time.Since(h.began)
}

// watched is the directory of a sealer, which notes each access that takes longer than hangLimit.
type watched struct {
	Directory
	hang *hang
	log  *logrus.Entry
}

func (w watched) access(call func() error) error { return w.hang.access(w.log, w.Dir, call) }

// Read returns the first limit bytes of a file.
func (w watched) Read(ctx context.Context, name string, limit int64) (file []byte, err error) {
	err = w.access(func() error {
		file, err = w.Directory.Read(ctx, name, limit)
		return err
	})
	return file, err
}

// ID returns the id of the job whose ledger is in the directory; "": of none.
func (w watched) ID() (id string, err error) {
	err = w.access(func() error {
		id, err = w.Directory.ID()
		return err
	})
	return id, err
}

// setAside renames the directory.
func (w watched) setAside(id string) (aside string, err error) {
	err = w.access(func() error {
		aside, err = w.Directory.setAside(id)
		return err
	})
	return aside, err
}

// Claim makes the directory, if need be, and writes the id of the job into it.
func (w watched) Claim(ctx context.Context, id string) error {
	return w.access(func() error { return w.Directory.Claim(ctx, id) })
}

// Write writes a file.
func (w watched) Write(ctx context.Context, name string, file []byte) error {
	return w.access(func() error { return w.Directory.Write(ctx, name, file) })
}

// Remove removes files, each in an access of its own.
func (w watched) Remove(ctx context.Context, names []string) error {
	for i := range names {
		if err := w.access(func() error { return w.Directory.Remove(ctx, names[i:i+1]) }); err != nil {
			return err
		}
	}
	return nil
}

// List returns the names of all files.
func (w watched) List(ctx context.Context) (names []string, err error) {
	err = w.access(func() error {
		names, err = w.Directory.List(ctx)
		return err
	})
	return names, err
}
