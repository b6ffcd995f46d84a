package master

import (
	"context"
	"time"
)

// FaultyShards are parameter servers that can say what an operator has to repair.
type FaultyShards interface {
	Shards
	// Faults asks all servers. With an error it is what the servers that answered say.
	Faults(ctx context.Context) (ShardFaults, error)
}

// ShardFaults are the conditions of parameter servers that only an operator can end, each with the index of its server.
type ShardFaults struct {
	Overflow   string // the first value that is not finite, of each server that has one; "": none has
	Unrestored string // why servers wait without parameters: the checkpoint to start from is damaged or missing; "": none waits
}

const faultsEvery = 5 * time.Second

// watchFaults notes the faults of parameter servers for the status, until ctx ends.
func (m *Master) watchFaults(ctx context.Context, t *term, shards FaultyShards) error {
	clock := t.committer.time
	var before ShardFaults
	for ctx.Err() == nil {
		bounded, cancel := clock.WithTimeout(ctx, faultsEvery)
		now, err := shards.Faults(bounded)
		cancel()
		if err == nil || now != (ShardFaults{}) { // else nothing newer is known
			t.faults.Store(&now)
			if now.Overflow != "" && now.Overflow != before.Overflow {
				m.log.WithField("value", now.Overflow).Error("parameters overflowed: no more checkpoints are written")
			}
			if now.Unrestored != "" && now.Unrestored != before.Unrestored {
				m.log.WithField("reason", now.Unrestored).Error("parameter servers wait: checkpoint is damaged or missing")
			}
			before = now
		}
		clock.Sleep(ctx, faultsEvery)
	}
	return context.Cause(ctx)
}
