package dataport

import (
	"testing"

	core "trainmaster/pserver/shard"
)

func TestEachReasonOfARefusalHasACode(t *testing.T) {
	if want := int(core.OtherModel) + 1; len(faultCodes) != want {
		t.Fatalf("codes: expected %d, found %d", want, len(faultCodes))
	}
	for reason := core.Fenced; reason <= core.OtherModel; reason++ {
		if fault := faultOf(core.Refuse(reason, "reason %d", reason).At(7)); fault.Code == 0 || fault.Version != 7 {
			t.Errorf("reason %d: found %+v", reason, fault)
		}
	}
	if fault := faultOf(nil); fault != nil {
		t.Errorf("without a refusal: found %v", fault)
	}
}
