package params

import (
	"context"
	"errors"
	"fmt"
	"slices"

	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/pserver/placement"
	"trainmaster/pserver/placement/onwire"
	"trainmaster/pserver/table"
)

// errMoved is returned if the client has an old placement.
var errMoved = errors.New("blocks were moved")

// shardsError is returned if there are fewer servers than shards in the table. Either the client has an old placement, or the job
// started with another number of servers.
type shardsError struct{ found, expected int }

func (e *shardsError) Error() string {
	return fmt.Sprintf("found %d parameter servers: the model is spread over %d", e.found, e.expected)
}

// isLayoutStale reports whether a later placement may help.
func isLayoutStale(err error) bool {
	var lacking *shardsError
	return errors.Is(err, errMoved) || errors.As(err, &lacking)
}

// takePlacement compares a server's table with the one known here, and takes a later one over.
func (c *Client) takePlacement(p *pb.ParameterPlacement) error {
	theirs, err := onwire.FromProto(p)
	if err != nil {
		return fmt.Errorf("the server's placement: %w", err)
	}
	c.takeKeys(theirs.Sparse)
	if theirs.Digest() == c.table.Digest() {
		return nil
	}
	sameModel := slices.Equal(theirs.Sparse, c.table.Sparse) && slices.EqualFunc(theirs.Tensors, c.table.Tensors, func(a, b placement.Tensor) bool {
		return a.Name == b.Name && slices.Equal(a.Shape, b.Shape)
	})
	switch {
	case !sameModel || theirs.Epoch == c.table.Epoch:
		return fmt.Errorf("the server's placement is not the one computed here: %s", difference(theirs, c.table))
	case theirs.Epoch > c.table.Epoch:
		c.usePlacement(theirs)
	}
	return fmt.Errorf("%w: the server's placement has epoch %d", errMoved, theirs.Epoch)
}

// difference says in words where a server's table differs from the one computed here.
func difference(theirs, mine *placement.Table) string {
	if theirs.Shards != mine.Shards || len(theirs.Tensors) != len(mine.Tensors) || len(theirs.Sparse) != len(mine.Sparse) {
		return fmt.Sprintf("expected %d tensors and %d tables on %d shards, found %d and %d on %d",
			len(mine.Tensors), len(mine.Sparse), mine.Shards, len(theirs.Tensors), len(theirs.Sparse), theirs.Shards)
	}
	for i, want := range mine.Tensors {
		if got := theirs.Tensors[i]; got.Name != want.Name || !slices.Equal(got.Shape, want.Shape) {
			return fmt.Sprintf("expected the tensor %q %v, found %q %v", want.Name, want.Shape, got.Name, got.Shape)
		}
	}
	for k, want := range mine.Sparse {
		got := theirs.Sparse[k]
		if got.Name == want.Name && got.Key != want.Key {
			return fmt.Sprintf("table %q has another key of ids than at other servers: %s", want.Name, otherKeyHelp)
		}
		if got != want {
			return fmt.Sprintf("expected the table %+v, found %+v", want, got)
		}
	}
	if theirs.Epoch != mine.Epoch {
		return fmt.Sprintf("expected epoch %d, found %d", mine.Epoch, theirs.Epoch)
	}
	return "some blocks or slots are on other shards"
}

// takeKeys takes over the keys by which the ids of tables are hashed, where none is known yet.
func (c *Client) takeKeys(theirs []Table) {
	mine := slices.Clone(c.table.Sparse)
	for k := range mine {
		if k < len(theirs) && mine[k].Key == (table.Key{}) {
			mine[k].Key = theirs[k].Key
		}
	}
	c.table.Sparse = mine
}

// usePlacement gives every link the slots of a later table. Slots keep their state, so that a call
// continues.
func (c *Client) usePlacement(table *placement.Table) {
	slots := make([]slot, len(table.Owners))
	for _, l := range c.links {
		for _, s := range l.slots {
			slots[s.ID] = s
		}
		l.slots = nil
		l.hangUp()
	}
	for len(c.links) < table.Shards {
		c.links = append(c.links, newLink(c, len(c.links), ""))
	}
	for _, l := range c.links[table.Shards:] {
		l.close() //nolint:errcheck // nothing is asked there any more
	}
	c.links = c.links[:table.Shards]
	for id, s := range slots {
		l := c.links[table.Owners[id]]
		l.slots = append(l.slots, s)
	}
	c.table = table
	c.cfg.Log.WithField("epoch", table.Epoch).WithField("shards", table.Shards).Info("blocks moved, using new placement")
}

// refreshLayout asks the servers until one has a later placement, or until cause excludes it.
// It also waits while some servers have a placement with more shards than the client found.
func (c *Client) refreshLayout(ctx context.Context, cause error) error {
	pause := c.cfg.pause()
	for {
		var newest *pb.ParameterPlacement
		for _, l := range c.links {
			if p := l.describePlacement(ctx); p.GetEpoch() > newest.GetEpoch() {
				newest = p
			}
		}
		if newest.GetEpoch() > c.table.Epoch {
			if err := c.takePlacement(newest); !errors.Is(err, errMoved) {
				return err
			}
			return nil
		}
		if _, lacking := errors.AsType[*shardsError](cause); lacking && newest != nil && int(newest.GetShards()) != c.table.Shards {
			return cause
		}
		if err := pause.wait(ctx, cause); err != nil {
			return err
		}
	}
}

// describePlacement is nil when the server cannot be asked.
func (l *link) describePlacement(ctx context.Context) *pb.ParameterPlacement {
	ctx, cancel := context.WithTimeout(ctx, l.client.cfg.ReplyTimeout)
	defer cancel()
	if l.replaced() {
		l.drop()
	}
	if err := l.find(ctx); err != nil {
		return nil
	}
	ctx, release := l.bound(ctx)
	defer release()
	control, err := l.controlClient()
	if err != nil {
		return nil
	}
	reply, err := control.Describe(ctx, &pb.DescribeRequest{})
	if err != nil {
		l.drop()
		return nil
	}
	return reply.GetPlacement()
}

// hangUp closes the connection; the address stays.
func (l *link) hangUp() {
	if l.stream != nil {
		l.stream.close() //nolint:errcheck // it is given up
		l.stream = nil
	}
}
