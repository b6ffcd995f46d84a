package psclient

import (
	"context"
	"fmt"
	"strings"

	"trainmaster/master/pscontrol"
	pb "trainmaster/proto/trainmaster/v1"
)

// Faults implements [pscontrol.Servers].
func (c *Client) Faults(ctx context.Context) (pscontrol.Faults, error) {
	registered, err := c.Registered(ctx)
	if err != nil {
		return pscontrol.Faults{}, fmt.Errorf("find the parameter servers: %w", err)
	}
	var addrs []string
	var indices []int
	for index, addr := range registered {
		if addr != "" {
			addrs, indices = append(addrs, addr), append(indices, index)
		}
	}
	found := make([]*pb.DescribeReply, len(addrs))
	err = c.all(addrs, "describe", func(i int, server pb.ParameterServerClient) (err error) {
		found[i], err = server.Describe(ctx, &pb.DescribeRequest{Brief: true})
		return err
	})
	var overflow, unrestored []string
	for i, reply := range found {
		if text := reply.GetOverflow(); text != "" {
			overflow = append(overflow, fmt.Sprintf("parameter server %d: %s", indices[i], text))
		}
		if text := reply.GetUnrestored(); text != "" {
			unrestored = append(unrestored, fmt.Sprintf("parameter server %d: %s", indices[i], text))
		}
	}
	return pscontrol.Faults{Overflow: strings.Join(overflow, "; "), Unrestored: strings.Join(unrestored, "; ")}, err
}
