package trainer

import (
	"bytes"
	"encoding/binary"
	"iter"
	"math/rand/v2"

	"trainmaster/taskqueue"
)

// shuffled yields the records of a task in the order of recordOrder, from Base on. All records of the task are in memory. An error of any
// record comes before the first record.
func (c *Client) shuffled(task *taskqueue.Task) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		var records [][]byte
		for record, err := range c.inFileOrder(task, 0) {
			if err != nil {
				yield(nil, err)
				return
			}
			records = append(records, bytes.Clone(record))
		}
		order := recordOrder(c.config.ShuffleRecords, task.Token, len(records))
		//guard:base-in-shuffled-order
		for _, i := range order[min(c.Base(task), int64(len(order))):] {
			if !yield(records[i], nil) {
				return
			}
		}
	}
}

// recordOrder returns a permutation of the n records of a task. It depends on the seed, the dataset, the pass and the position only: each
// attempt of a task has the same one, on each trainer and after a rollback.
func recordOrder(seed uint64, token taskqueue.Token, n int) []int {
	var key [32]byte
	//guard:record-order-of-each-attempt
	for i, v := range [...]uint64{seed, uint64(token.Dataset), uint64(token.Pass), uint64(token.Position)} {
		binary.LittleEndian.PutUint64(key[8*i:], v)
	}
	random := rand.New(rand.NewChaCha8(key))
	order := make([]int, n)
	for i := range order {
		j := int(random.Uint64N(uint64(i) + 1))
		order[i] = order[j]
		order[j] = i
	}
	return order
}
