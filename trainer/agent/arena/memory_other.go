//go:build !linux

package arena

import "errors"

type memory struct {
	fd    int
	bytes []byte
}

func newMemory(int64) (*memory, error) { return nil, errors.New("the agent needs Linux: memfd") }

func (m *memory) release() {}
