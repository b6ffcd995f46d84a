package tool

import (
	"context"
	"fmt"
	"io"
	"os"

	"trainmaster/recordio"
)

// unblocked runs a call that may block without a bound, such as the open of a FIFO that nothing writes. It returns when
// ctx ends; the call then continues until the process ends, and its result is dropped.
func unblocked[T any](ctx context.Context, call func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		value, err := call()
		done <- result{value, err}
	}()
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
		var none T
		return none, context.Cause(ctx)
	}
}

// input reads a file, a FIFO or a terminal. A read ends with ctx, so that a signal ends the command.
type input struct {
	ctx    context.Context //nolint:containedctx // io.Reader has none
	from   io.Reader
	buffer []byte
}

const inputBuffer = 64 << 10 // bytes

func (in *input) Read(p []byte) (int, error) {
	if in.ctx.Err() != nil {
		return 0, context.Cause(in.ctx)
	}
	if in.buffer == nil {
		in.buffer = make([]byte, inputBuffer)
	}
	buffer := in.buffer[:min(len(p), inputBuffer)]
	n, err := unblocked(in.ctx, func() (int, error) { return in.from.Read(buffer) })
	return copy(p, buffer[:n]), err
}

// inputFile is an input with the file to close.
type inputFile struct {
	input
	file *os.File
}

func (f *inputFile) Close() error { return f.file.Close() }

// openInput opens a file to read, or a FIFO or device such as /dev/stdin. Its errors say what else was found.
func openInput(ctx context.Context, path string) (*inputFile, error) {
	file, err := unblocked(ctx, func() (*os.File, error) { return os.Open(path) })
	if err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, recordio.OpenError(path, err)
	}
	if info, err := file.Stat(); err == nil && info.IsDir() {
		file.Close()
		return nil, fmt.Errorf("%s: expected a file, found a directory: name the files in it", recordio.DisplayName(path))
	}
	return &inputFile{input{ctx: ctx, from: file}, file}, nil
}
