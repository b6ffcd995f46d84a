// Package staleness implements the weight of stale gradients. The staleness of a
// gradient is the number of updates by other trainers between the parameters that
// it was computed at and its arrival, counted for each block and each slot.
//
// Scaling by 1/staleness follows Zhang, Gupta, Lian and Liu, "Staleness-aware
// Async-SGD for Distributed Deep Learning" (IJCAI 2016), where the limit is 0.
package staleness

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// The policies for gradients beyond the limit.
const (
	Apply = "apply" // with the full learning rate
	Scale = "scale" // with the learning rate times 1/staleness
)

// Policies returns all policies.
func Policies() []string { return []string{Apply, Scale} }

// Bound is a job's rule for stale gradients. The zero value is Apply.
type Bound struct {
	Policy string `json:"policy"` // "" is Apply
	Limit  uint64 `json:"limit"`  // updates of others up to which a gradient is applied as it is
}

// Validate refuses an unknown policy and a limit without one. It normalizes b: equal rules compare equal.
func (b *Bound) Validate() error {
	if b.Policy == Apply {
		b.Policy = ""
	}
	switch {
	case b.Policy == "" && b.Limit > 0:
		return fmt.Errorf("staleness limit %d without a policy: expected policy %s", b.Limit, Scale)
	case b.Policy != "" && !slices.Contains(Policies(), b.Policy):
		return fmt.Errorf("staleness policy %q: expected one of %s", b.Policy, strings.Join(Policies(), ", "))
	}
	return nil
}

// Weight returns the factor of the learning rate for a gradient of the given staleness.
func (b Bound) Weight(staleness uint64) float32 {
	if b.Policy == "" || staleness <= b.Limit {
		return 1
	}
	return float32(1 / float64(staleness))
}

// Name returns the policy's name.
func (b Bound) Name() string { return cmp.Or(b.Policy, Apply) }

func (b Bound) String() string {
	if b.Name() == Apply {
		return Apply
	}
	return fmt.Sprintf("%s beyond %d", b.Policy, b.Limit)
}
