package trainer

import "time"

// SetPatience sets how long a client waits for the answer of a call that is no long poll.
func (c *Client) SetPatience(d time.Duration) {
	c.link.mu.Lock()
	defer c.link.mu.Unlock()
	c.link.patience = d
}
