package psclient

import (
	"context"
	"fmt"
	"strings"

	"trainmaster/master/pscontrol"
)

// Faults implements [pscontrol.Servers].
func (c *Client) Faults(ctx context.Context) (pscontrol.Faults, error) {
	addrs, err := c.Registered(ctx)
	if err != nil {
		return pscontrol.Faults{}, fmt.Errorf("find the parameter servers: %w", err)
	}
	servers, err := c.brief(ctx, addrs)
	var overflow, unrestored []string
	for i, reply := range servers {
		if text := reply.GetOverflow(); text != "" {
			overflow = append(overflow, fmt.Sprintf("parameter server %d: %s", i, text))
		}
		if text := reply.GetUnrestored(); text != "" {
			unrestored = append(unrestored, fmt.Sprintf("parameter server %d: %s", i, text))
		}
	}
	return pscontrol.Faults{Overflow: strings.Join(overflow, "; "), Unrestored: strings.Join(unrestored, "; ")}, err
}
