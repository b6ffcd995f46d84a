package taskqueue

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// golden compares got with a file that only -update changes.
func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", "golden", name)
	if *update {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	diff(t, file, string(want), got)
}

func TestOrderIsPermutation(t *testing.T) {
	for n := range 301 {
		for _, seed := range []uint64{0, 42, 1<<64 - 1} {
			for _, pass := range []Pass{1, 2, 1<<32 - 1} {
				permutation(t, newOrder(orderFeistel, seed, pass, n), n)
			}
		}
		permutation(t, newOrder(orderIdentity, 42, 1, n), n)
	}
	for _, n := range []int{1023, 1024, 1025, 65536, 1_000_003} {
		permutation(t, newOrder(orderFeistel, 7, 3, n), n)
	}
}

func permutation(t *testing.T, o order, n int) {
	t.Helper()
	var seen bitmap
	for position := range n {
		index := o.index(position)
		if index < 0 || index >= n || seen.set(index) {
			t.Fatalf("n %d: position %d has task %d, which is outside or taken", n, position, index)
		}
		if back := o.position(index); back != position {
			t.Fatalf("n %d: task %d at position %d is found at %d", n, index, position, back)
		}
	}
}

// Orders that are too large to walk: the inverse holds, and every index is in range.
func TestOrderOfManyTasks(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{10_000_000, 1<<32 - 1, 1<<32 + 1, maxTasks - 1, maxTasks} {
		for pass := range Pass(20) {
			o := newOrder(orderFeistel, r.Uint64(), pass, n)
			for range 500 {
				position := r.IntN(n)
				index := o.index(position)
				if index < 0 || index >= n || o.position(index) != position {
					t.Fatalf("n %d: position %d has task %d, found at %d", n, position, index, o.position(index))
				}
			}
		}
	}
}

// Neighbors in one pass are not neighbors in the next, and every task comes early in some pass.
func TestOrderShuffles(t *testing.T) {
	const n, passes = 1000, 200
	first := make([]int, n) // how often a task is in the first tenth
	neighbours := 0
	for pass := Pass(1); pass <= passes; pass++ {
		o := newOrder(orderFeistel, 42, pass, n)
		for position := range n {
			if position < n/10 {
				first[o.index(position)]++
			}
			if position > 0 && o.index(position) == o.index(position-1)+1 {
				neighbours++
			}
		}
	}
	for task, times := range first {
		if times < 3 || times > 45 { // expected 20, with a deviation of 4.2
			t.Errorf("task %d was in the first tenth of %d passes of %d", task, times, passes)
		}
	}
	if neighbours > 2*passes { // expected one a pass
		t.Errorf("%d pairs of tasks kept their order in %d passes", neighbours, passes)
	}
}

func TestGoldenOrders(t *testing.T) {
	var b strings.Builder
	b.WriteString("# algorithm n seed pass: the tasks in their order; of large ones the first and last\n")
	for _, algorithm := range []uint8{orderIdentity, orderFeistel} {
		for _, n := range []int{1, 2, 3, 7, 16, 17, 50, 1000, 10_000_000, 1 << 40} {
			for _, seed := range []uint64{0, 42, 1<<64 - 1} {
				for _, pass := range []Pass{1, 2, 1000} {
					o := newOrder(algorithm, seed, pass, n)
					fmt.Fprintf(&b, "%d %d %d %d:", algorithm, n, seed, pass)
					for position := range min(n, 50) {
						fmt.Fprintf(&b, " %d", o.index(position))
					}
					if n > 50 {
						fmt.Fprintf(&b, " ... %d", o.index(n-1))
					}
					b.WriteByte('\n')
				}
			}
		}
	}
	golden(t, "orders.txt", b.String())
}
