// Package staleness says what becomes of a gradient that others have overtaken:
// the parameters that it was computed at have had updates of other trainers
// since. The number of these is its staleness, counted for each block by itself.
//
// Scaling by 1/staleness is after Zhang, Gupta, Lian and Liu, "Staleness-aware
// Async-SGD for Distributed Deep Learning" (IJCAI 2016), which is the limit 0.
package staleness

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// The policies, for gradients beyond the limit.
const (
	Apply  = "apply"  // as if nothing had happened
	Reject = "reject" // not applied: to be computed again from newer parameters
	Scale  = "scale"  // applied with the learning rate times 1/staleness
)

// Policies are all there are.
func Policies() []string { return []string{Apply, Reject, Scale} }

// Bound is a job's rule for stale gradients. The zero value applies all.
type Bound struct {
	Policy string `json:"policy"` // "" is Apply
	Limit  uint64 `json:"limit"`  // updates of others up to which a gradient is applied as it is
}

// Validate says what is wrong. Two that mean the same are equal after it.
func (b *Bound) Validate() error {
	if b.Policy == Apply {
		b.Policy = ""
	}
	switch {
	case b.Policy == "" && b.Limit > 0:
		return fmt.Errorf("staleness limit %d without a policy: expected %s or %s for what is beyond it", b.Limit, Reject, Scale)
	case b.Policy != "" && !slices.Contains(Policies(), b.Policy):
		return fmt.Errorf("staleness policy %q: expected one of %s", b.Policy, strings.Join(Policies(), ", "))
	}
	return nil
}

// Weight multiplies the learning rate for a gradient of that staleness; 0: it is not to be applied.
func (b Bound) Weight(staleness uint64) float32 {
	switch {
	case b.Policy == "" || staleness <= b.Limit:
		return 1
	case b.Policy == Scale:
		return float32(1 / float64(staleness))
	}
	return 0
}

// Name is that of the policy.
func (b Bound) Name() string { return cmp.Or(b.Policy, Apply) }

func (b Bound) String() string {
	if b.Name() == Apply {
		return Apply
	}
	return fmt.Sprintf("%s beyond %d", b.Policy, b.Limit)
}
