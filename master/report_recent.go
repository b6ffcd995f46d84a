package master

import (
	"crypto/sha256"
	"encoding/binary"
	"sync"
	"time"
)

// recentReports remembers which names were found to be the registered dataset a short while
// ago. A thousand trainers that start together report the same names: their files are read
// once, and not a thousand times.
type recentReports struct {
	mu      sync.Mutex
	dataset [32]byte               // that the entries are about
	at      map[[32]byte]time.Time // by the digest of the names
}

const (
	checkedFor = time.Minute // how long files that were read are not read again
	maxChecked = 64          // different lists of names that are remembered
)

// digestOf is the digest of names, in their order.
func digestOf(names []string) [32]byte {
	sum := sha256.New()
	var length [binary.MaxVarintLen64]byte
	for _, name := range names {
		sum.Write(length[:binary.PutUvarint(length[:], uint64(len(name)))])
		sum.Write([]byte(name))
	}
	return [32]byte(sum.Sum(nil))
}

// has reports whether the names were found to be the dataset.
func (r *recentReports) has(dataset, names [32]byte) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	at, ok := r.at[names]
	return ok && r.dataset == dataset && time.Since(at) < checkedFor
}

// add notes that the names are the dataset.
func (r *recentReports) add(dataset, names [32]byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.dataset != dataset || len(r.at) >= maxChecked {
		r.dataset, r.at = dataset, map[[32]byte]time.Time{}
	}
	r.at[names] = time.Now()
}
