package trainer

import "time"

// SetPatience makes a client wait so long for calls that the master answers at once.
func (c *Client) SetPatience(d time.Duration) {
	c.link.mu.Lock()
	defer c.link.mu.Unlock()
	c.link.patience = d
}
