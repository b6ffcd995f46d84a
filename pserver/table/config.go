package table

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode/utf8"
)

// The initializers: where the values of a row start.
const (
	Zeros   = "zeros"
	Uniform = "uniform" // in [-Scale, Scale)
	Normal  = "normal"  // with mean 0 and deviation Scale
)

// Initializers lists them.
func Initializers() []string { return []string{Zeros, Uniform, Normal} }

// Limits of a table.
const (
	MaxTables = 1 << 10
	MaxName   = 512     // bytes in a table's name
	MaxDim    = 1 << 14 // a frame takes several rows of this size
)

// Config is a table. It belongs to the job: all trainers and servers have the same.
type Config struct {
	Name string `json:"name"`
	Dim  int    `json:"dim"` // floats in a row

	// Value j of the row of an id is made of u(0), u(1), ..., the outputs of SplitMix64 (Steele, Lea and Flood 2014) from the
	// state mix(mix(Seed ^ FNV1a64(Name)) ^ id), where mix is the generator's own last step:
	//
	//	zeros    0
	//	uniform  (k / 2^23 - 1) * Scale, k the upper 24 bits of the lower (j even) or upper (j odd) half of u(j/2)
	//	normal   ((s - 393210) / 65536) * Scale, s the sum of the twelve 16-bit quarters of u(3j), u(3j+1), u(3j+2): a sum of
	//	         twelve uniform numbers (Irwin-Hall), which goes no further than 6 deviations and needs integers only
	//
	// Only the product with Scale is rounded, so the bits are the same on every machine.
	Init  string  `json:"init"`
	Scale float32 `json:"scale,omitempty"`
	Seed  uint64  `json:"seed,omitempty"`

	Expiry    uint64 `json:"expiry,omitempty"`    // steps without an update after which a row is dropped; 0: never
	Admission uint32 `json:"admission,omitempty"` // the update of an id that makes its row; default 1

	Key Key `json:"key,omitzero"` // of the job; the servers set it and send it to the trainers
}

// Validate returns an error for an invalid field, and sets the defaults. Two that mean
// the same are equal after it.
func (c *Config) Validate() error {
	switch {
	case c.Name == "" || len(c.Name) > MaxName || !utf8.ValidString(c.Name) || c.Name == "__metadata__":
		return fmt.Errorf("table name %.40q: expected 1 to %d bytes of UTF-8, and not a reserved name", c.Name, MaxName)
	case c.Dim < 1 || c.Dim > MaxDim:
		return fmt.Errorf("table %q has rows of %d floats: expected 1 to %d", c.Name, c.Dim, MaxDim)
	case !slices.Contains(Initializers(), c.Init):
		return fmt.Errorf("table %q has initializer %q: expected one of %s", c.Name, c.Init, strings.Join(Initializers(), ", "))
	case c.Scale < 0 || c.Scale-c.Scale != 0:
		return fmt.Errorf("table %q has scale %v: expected a positive number", c.Name, c.Scale)
	case (c.Scale == 0) != (c.Init == Zeros):
		return fmt.Errorf("table %q has initializer %s with scale %v: %s has none, the others need one", c.Name, c.Init, c.Scale, Zeros)
	case c.Expiry > maxClock:
		return fmt.Errorf("table %q drops rows after %d steps: expected at most %d", c.Name, c.Expiry, uint32(maxClock))
	case c.Admission > math.MaxInt32:
		return fmt.Errorf("table %q gives a row to the %dth update: expected at most %d", c.Name, c.Admission, math.MaxInt32)
	//guard:admission-needs-expiry
	case c.Admission > 1 && c.Expiry == 0:
		return fmt.Errorf("table %q has admission %d without expiry: expected expiry above 0, since ids that wait for a row are kept until they expire", c.Name, c.Admission)
	}
	c.Admission = max(c.Admission, 1)
	return nil
}

// CheckStep returns an error if a push with this step must be refused: the clock of a slot cannot represent it. Rows of a slot with a clock
// at its limit would never expire. A table without expiry accepts each step.
func (c *Config) CheckStep(step uint64) error {
	if c.Expiry > 0 && step > maxClock {
		return fmt.Errorf("table %q with expiry %d: expected a step of at most %d, found %d: count the pushes from 1", c.Name, c.Expiry, uint32(maxClock), step)
	}
	return nil
}

// Differ describes the first difference to another description of the table, empty if there is none.
func (c Config) Differ(other Config) string {
	for _, f := range []struct {
		name        string
		mine, yours any
	}{
		{"dim", c.Dim, other.Dim},
		{"initializer", c.Init, other.Init},
		{"scale", c.Scale, other.Scale},
		{"seed", c.Seed, other.Seed},
		{"expiry", c.Expiry, other.Expiry},
		{"admission", c.Admission, other.Admission},
	} {
		if f.mine != f.yours {
			return fmt.Sprintf("table %q has %s %v, yours %v", c.Name, f.name, f.mine, f.yours)
		}
	}
	return ""
}
