package trainer

import "time"

// RecordOrder is recordOrder.
var RecordOrder = recordOrder

// CopyStall is the time limit without WithCopyStall.
const CopyStall = copyStall

// WithCopyStall returns config with the time without a sent message after which a copy of the model ends.
func WithCopyStall(config Config, d time.Duration) Config {
	config.copyStall = d
	return config
}

// SetPatience sets how long a client waits for the answer of a call that is no long poll.
func (c *Client) SetPatience(d time.Duration) {
	c.link.mu.Lock()
	defer c.link.mu.Unlock()
	c.link.patience = d
}

// CopyModelOf is copyModelOf.
var CopyModelOf = copyModelOf
