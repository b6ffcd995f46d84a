package dataport

import (
	"math"
	"time"

	core "trainmaster/pserver/shard"
	"trainmaster/pserver/wire"
)

// faultCodes has the wire code of each reason of a refusal.
var faultCodes = [...]wire.Code{
	core.Fenced: wire.Fenced, core.Moved: wire.Moved, core.Frozen: wire.Wait, core.Stale: wire.Stale, core.NotYet: wire.Wait,
	core.Full: wire.Busy, core.NoRoom: wire.NoRoom, core.NotClaimed: wire.NotClaimed, core.NotReady: wire.Busy,
	core.Changed: wire.Malformed, core.BadBatch: wire.BadRows,
	core.NoParameters: wire.Uninitialized, core.NoSet: wire.NoSet, core.OtherModel: wire.OtherModel,
}

// faultOf converts a refusal of the core to the fault of a reply; nil stays nil.
func faultOf(refused *core.Refusal) *wire.Fault {
	if refused == nil {
		return nil
	}
	return &wire.Fault{Code: faultCodes[refused.Reason], Message: refused.Error(), Version: core.ClampVersion(refused.Version)}
}

// updateOf reads the update of a push.
func updateOf(head *wire.Header) (core.Update, *wire.Fault) {
	scale, err := core.CheckScale(math.Float32frombits(head.Argument))
	if err != nil {
		return core.Update{}, wire.Faultf(wire.Malformed, "%v", err)
	}
	return core.Update{Step: head.Step, BasedOn: head.Version, Scale: scale}, nil
}

// gradientOf reads the gradient of a stage.
func gradientOf(head *wire.Header) core.Gradient {
	return core.Gradient{Version: head.Step, Records: head.Argument, Sequence: head.Sequence, Arrived: time.Now()}
}
