package ring

import (
	"context"
	"fmt"
	"sync"

	"trainmaster/pserver/floats"
	"trainmaster/pserver/optimizer"
)

// MaxMessage is the maximum size of a message of Gather.
const MaxMessage = maxBlock

// blockFloats is the number of elements in a full block.
const blockFloats = maxBlock / 4

// Gather sends a message to all members, and returns the messages of all members in rank order.
func (g *Group) Gather(ctx context.Context, own []byte) ([][]byte, error) {
	if len(own) > MaxMessage {
		return nil, fmt.Errorf("message: expected at most %d bytes, found %d", MaxMessage, len(own))
	}
	all := make([][]byte, len(g.conns))
	all[g.Rank] = own
	o, err := g.begin(func(int) int { return 1 }, func(_ *conn, f frame) ([]byte, error) {
		if f.kind != message {
			return nil, fmt.Errorf("expected a message, found a frame of kind %d", f.kind)
		}
		return make([]byte, f.length), nil
	}, func(c *conn, _ frame, block []byte) { all[c.rank] = block })
	if err != nil {
		return nil, err
	}
	var senders sync.WaitGroup
	g.each(&senders, func(c *conn) error { return g.send(c, g.frame(message, 0), own) })
	if err := g.end(ctx, o, &senders); err != nil {
		return nil, err
	}
	return all, nil
}

// each runs a sender for each other member.
func (g *Group) each(senders *sync.WaitGroup, send func(*conn) error) {
	for _, c := range g.conns {
		if c != nil {
			senders.Go(func() {
				if err := send(c); err != nil {
					_ = g.lost(c, g.sendError(c, err))
				}
			})
		}
	}
}

// sendError returns the error of the reader, if there is one: it has the reason of a member that has left.
func (g *Group) sendError(c *conn, err error) error {
	select {
	case <-c.broken:
		return c.err
	case <-g.failed:
		return g.err
	default:
		return fmt.Errorf("%w: %w", ErrGone, err)
	}
}

// Broadcast copies content from the rank root to the ranks of receivers, in place: it has the same length at all of them. The other members
// return immediately.
func (g *Group) Broadcast(ctx context.Context, root int, receivers []int, content []byte) error {
	receives := make([]bool, len(g.conns))
	for _, rank := range receivers {
		receives[rank] = true
	}
	blocks := blocksOf(len(content), maxBlock)
	o, err := g.begin(func(rank int) int {
		if rank == root && receives[g.Rank] {
			return blocks
		}
		return 0
	}, func(c *conn, f frame) ([]byte, error) {
		from, to := blockAt(len(content), maxBlock, int(f.block))
		if f.kind != copied || c.rank != root || int(f.length) != to-from {
			return nil, unexpected(f, to-from)
		}
		return content[from:to], nil
	}, func(*conn, frame, []byte) {})
	if err != nil {
		return err
	}
	var senders sync.WaitGroup
	if g.Rank == root {
		g.each(&senders, func(c *conn) error {
			for b := 0; b < blocks && receives[c.rank]; b++ {
				from, to := blockAt(len(content), maxBlock, b)
				if err := g.send(c, g.frame(copied, uint32(b)), content[from:to]); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return g.end(ctx, o, &senders)
}

func unexpected(f frame, want int) error {
	return fmt.Errorf("expected a block of %d bytes, found block %d of kind %d with %d bytes: all members must have vectors of the same length", want, f.block, f.kind, f.length)
}

// blocksOf returns the number of blocks of n elements.
func blocksOf(n, size int) int { return (n + size - 1) / size }

// blockAt returns the elements of a block. A block behind the end has none.
func blockAt(n, size, block int) (from, to int) {
	return min(n, block*size), min(n, (block+1)*size)
}

// part returns the elements of the part of a rank.
func (g *Group) part(n, rank int) (from, to int) {
	return n * rank / len(g.conns), n * (rank + 1) / len(g.conns)
}

// AllReduce replaces vector by the sum of the vectors of all members, added in rank order. All members must have the same length. After an
// error, the content of vector is undefined.
func (g *Group) AllReduce(ctx context.Context, vector []float32) error {
	parts := make([][]float32, len(g.conns))
	blocks := make([]int, len(g.conns))
	for rank := range parts {
		from, to := g.part(len(vector), rank)
		parts[rank] = vector[from:to]
		blocks[rank] = blocksOf(to-from, blockFloats)
	}
	r := &reduction{group: g, parts: parts, blocks: blocks, sent: make([]chan struct{}, len(g.conns)), summed: make([]chan int, len(g.conns)), next: make([][2]uint32, len(g.conns))}
	for rank := range parts {
		r.sent[rank], r.summed[rank] = make(chan struct{}, blocks[rank]), make(chan int, blocks[g.Rank])
	}
	o, err := g.begin(func(rank int) int { return blocks[g.Rank] + blocks[rank] }, r.room, func(c *conn, f frame, _ []byte) {
		if f.kind == contribution {
			c.full <- c.reading // it has room for all blocks of free
		}
	})
	if err != nil {
		return err
	}
	var senders sync.WaitGroup
	g.each(&senders, r.contribute)
	g.each(&senders, r.publish)
	if err := r.add(ctx); err != nil {
		senders.Wait()
		g.readers.Wait()
		return err
	}
	return g.end(ctx, o, &senders)
}

// reduction is an AllReduce in progress.
type reduction struct {
	group  *Group
	parts  [][]float32 // by owner
	blocks []int       // by owner

	// sent has a token for each block that the owner of a part was sent.
	sent []chan struct{}
	// summed has the blocks of the own part to send to a member.
	summed []chan int
	// next has the next block of a contribution and of a sum from a member. Its reader uses it.
	next [][2]uint32
}

// block returns the elements of a block of a part.
func (r *reduction) block(owner, block int) []float32 {
	from, to := blockAt(len(r.parts[owner]), blockFloats, block)
	return r.parts[owner][from:to]
}

// room implements the reader's side.
func (r *reduction) room(c *conn, f frame) ([]byte, error) {
	g := r.group
	if f.kind != contribution && f.kind != sum {
		return nil, fmt.Errorf("expected a block of a sum, found a frame of kind %d", f.kind)
	}
	owner, next := g.Rank, &r.next[c.rank][0]
	if f.kind == sum {
		owner, next = c.rank, &r.next[c.rank][1]
	}
	into := r.block(owner, int(*next))
	if f.block != *next || int(f.length) != 4*len(into) || len(into) == 0 {
		return nil, fmt.Errorf("block %d: %w", *next, unexpected(f, 4*len(into)))
	}
	*next++
	if f.kind == contribution {
		select {
		case c.reading = <-c.free:
		case <-g.failed:
			return nil, g.err
		}
		if c.reading == nil {
			c.reading = make([]float32, blockFloats)
		}
		c.reading = c.reading[:len(into)]
		return floats.Bytes(c.reading), nil
	}
	// The member has added the block, so this member has sent it. The token says that its sender does not read the memory any more.
	select {
	case <-r.sent[c.rank]:
		return floats.Bytes(into), nil
	case <-g.failed:
		return nil, g.err
	}
}

// contribute sends the part of an owner to it.
func (r *reduction) contribute(c *conn) error {
	for b := range r.blocks[c.rank] {
		if err := r.group.send(c, r.group.frame(contribution, uint32(b)), floats.Bytes(r.block(c.rank, b))); err != nil {
			return err
		}
		r.sent[c.rank] <- struct{}{}
	}
	return nil
}

// publish sends the blocks of the own part to a member, when they are added.
func (r *reduction) publish(c *conn) error {
	for range r.blocks[r.group.Rank] {
		select {
		case b := <-r.summed[c.rank]:
			if err := r.group.send(c, r.group.frame(sum, uint32(b)), floats.Bytes(r.block(r.group.Rank, b))); err != nil {
				return err
			}
		case <-r.group.failed:
			return r.group.err
		}
	}
	return nil
}

// add adds the blocks of the own part.
func (r *reduction) add(ctx context.Context) error {
	g := r.group
	received := make([][]float32, len(g.conns))
	for b := range r.blocks[g.Rank] {
		for rank, c := range g.conns {
			if c == nil {
				continue
			}
			var err error
			if received[rank], err = await(ctx, g, c, c.full); err != nil {
				return err
			}
		}
		own := r.block(g.Rank, b)
		addInRankOrder(own, g.Rank, received)
		for rank, c := range g.conns {
			if c != nil {
				c.free <- received[rank][:blockFloats]
				r.summed[rank] <- b
			}
		}
	}
	return nil
}

// addInRankOrder replaces own by the sum of the blocks of all ranks. It overwrites the received blocks.
func addInRankOrder(own []float32, rank int, received [][]float32) {
	sum := own
	if rank != 0 {
		sum = received[0]
	}
	//guard:ring-sums-in-rank-order
	for other := 1; other < len(received); other++ {
		if other == rank {
			optimizer.Add(sum, own)
		} else {
			optimizer.Add(sum, received[other])
		}
	}
	if rank != 0 {
		copy(own, sum)
	}
}
