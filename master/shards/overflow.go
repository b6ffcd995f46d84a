package shards

import (
	"context"
	"fmt"
	"strings"

	pb "trainmaster/proto/trainmaster/v1"
)

// Overflow implements [master.OverflowShards].
func (c *Client) Overflow(ctx context.Context) (string, error) {
	registered, err := c.Registered(ctx)
	if err != nil {
		return "", fmt.Errorf("find the parameter servers: %w", err)
	}
	var addrs, says []string
	var indices []int
	for index, addr := range registered {
		if addr != "" {
			addrs, indices = append(addrs, addr), append(indices, index)
		}
	}
	found := make([]string, len(addrs))
	err = c.all(addrs, "describe", func(i int, server pb.ParameterServerClient) error {
		reply, err := server.Describe(ctx, &pb.DescribeRequest{Brief: true})
		found[i] = reply.GetOverflow()
		return err
	})
	for i, what := range found {
		if what != "" {
			says = append(says, fmt.Sprintf("parameter server %d: %s", indices[i], what))
		}
	}
	return strings.Join(says, "; "), err
}
