package etcdstore

import (
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"syscall"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

var (
	// ErrDiskFull: the embedded etcd could not write, because its disk has no space. Confirmed writes are on the disk, and a
	// start with space on the disk continues from there.
	ErrDiskFull = errors.New("the disk is full")

	// ErrStorage: the embedded etcd stopped for another reason, such as a disk that does not read or write.
	ErrStorage = errors.New("the embedded etcd failed")

	// ErrInUse: another process uses the directory of an embedded etcd.
	ErrInUse = errors.New("in use by another process")
)

// failure catches the reason for which an embedded etcd stops. etcd writes it to its log as fatal or as a panic, and relies on
// the end of the process there.
type failure struct {
	dir      string
	once     sync.Once
	happened chan struct{}
	err      error // set before happened is closed
}

func newFailure(dir string) *failure { return &failure{dir: dir, happened: make(chan struct{})} }

// OnWrite is called by the logger for an entry after which etcd must not run on.
func (f *failure) OnWrite(entry *zapcore.CheckedEntry, fields []zapcore.Field) {
	cause := errors.New(entry.Message)
	for _, field := range fields {
		if err, ok := field.Interface.(error); ok && field.Type == zapcore.ErrorType {
			cause = fmt.Errorf("%s: %w", entry.Message, err)
		}
	}
	f.once.Do(func() {
		if f.err = f.explain(cause); f.err == cause { //nolint:errorlint // the same error, not one like it
			f.err = fmt.Errorf("%w in %q: %w", ErrStorage, f.dir, cause)
		}
		close(f.happened)
	})
	// The goroutine of etcd stays here: it must not confirm anything, and a return or a panic would end the process before
	// its owner can report the reason.
	select {}
}

// explain names the directory of a full disk.
func (f *failure) explain(err error) error {
	select {
	case <-f.happened:
		return f.err
	default:
	}
	switch {
	case IsDiskFull(err):
		return fmt.Errorf("%w: expected room for etcd in %q, found none: %w", ErrDiskFull, f.dir, err)
	}
	return err
}

// IsDiskFull reports whether err means that a disk, or the quota of a user on it, has no room.
func IsDiskFull(err error) bool {
	//guard:disk-full-detected
	return errors.Is(err, ErrDiskFull) || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// logger writes etcd's errors to a file in its directory, as its own logger does, and reports fatal errors.
func (f *failure) logger() (func(*embed.Config) error, error) {
	config := zap.NewProductionConfig()
	config.EncoderConfig.EncodeTime = zapcore.ISO8601TimeEncoder
	config.OutputPaths = []string{filepath.Join(f.dir, embeddedLog)}
	config.ErrorOutputPaths = config.OutputPaths
	config.Level = zap.NewAtomicLevelAt(zap.ErrorLevel)
	config.DisableStacktrace = true
	//guard:etcd-fatal-hook
	log, err := config.Build(zap.WithFatalHook(f), zap.WithPanicHook(f))
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", config.OutputPaths[0], err)
	}
	return embed.NewZapLoggerBuilder(log), nil
}

// start starts etcd, unless it fails in a way that keeps it from returning.
func (f *failure) start(options *embed.Config) (*embed.Etcd, error) {
	type started struct {
		etcd *embed.Etcd
		err  error
	}
	done := make(chan started, 1)
	go func() {
		etcd, err := embed.StartEtcd(options)
		done <- started{etcd, err}
	}()
	select {
	case s := <-done:
		return s.etcd, s.err
	case <-f.happened:
		return nil, f.err
	}
}
