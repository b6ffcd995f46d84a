//go:build !linux

package arena

import "errors"

type memory struct {
	fd    int
	bytes []byte
}

const growing, fixed = 0, 0

var errNoMemory = errors.New("the agent needs Linux: memfd")

func newMemory(int64, int) (*memory, error) { return nil, errNoMemory }

func (m *memory) grow(int64) error { return errNoMemory }

func (m *memory) release() {}
