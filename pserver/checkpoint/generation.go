package checkpoint

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Generation names a checkpoint of a shard: the start of the server that wrote
// it, and its number within that start. Checkpoints of a later start are always newer: a server that lost its lease never
// supersedes its successor.
type Generation struct {
	Start    uint64 `json:"start"`
	Sequence uint64 `json:"sequence"`
}

// String is the name of its directory.
func (g Generation) String() string { return fmt.Sprintf("%08d-%08d", g.Start, g.Sequence) }

// Compare is below 0 when g is older than other.
func (g Generation) Compare(other Generation) int {
	return slices.Compare([]uint64{g.Start, g.Sequence}, []uint64{other.Start, other.Sequence})
}

func parseGeneration(name string) (g Generation, ok bool) {
	start, sequence, found := strings.Cut(name, "-")
	var err1, err2 error
	g.Start, err1 = strconv.ParseUint(start, 10, 64)
	g.Sequence, err2 = strconv.ParseUint(sequence, 10, 64)
	return g, found && err1 == nil && err2 == nil && g.String() == name
}
