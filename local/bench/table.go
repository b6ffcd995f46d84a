package bench

import (
	"fmt"
	"math"
	"math/rand/v2"

	"trainmaster/recordio"
	"trainmaster/taskqueue"
)

const chunksPerFile = 1000

// The sizes of chunks: log-normal around 1 MiB, of records of about 1 KiB.
const (
	sizeMedian  = 1 << 20
	sizeSpread  = 0.4
	recordBytes = 1 << 10
)

// syntheticTable is the task table of a dataset that does not exist: files of 1,000 chunks,
// one chunk a task, always the same for the same number of tasks.
func syntheticTable(tasks int) (*taskqueue.Table, error) {
	random := rand.New(rand.NewPCG(7, uint64(tasks)))
	table := taskqueue.NewTable(tasks)
	chunks := make([]recordio.Index, 0, chunksPerFile)
	for file := 0; table.Chunks() < tasks; file++ {
		chunks = chunks[:0]
		offset := int64(0)
		for range min(chunksPerFile, tasks-table.Chunks()) {
			size := uint32(sizeMedian * math.Exp(sizeSpread*random.NormFloat64()))
			records := max(1, uint32(float64(size)/(recordBytes*(0.9+0.2*random.Float64()))))
			chunks = append(chunks, recordio.Index{Offset: offset, Size: size, Records: records, Layout: 1, Checksum: random.Uint32()})
			offset += recordio.HeaderSize + int64(size)
		}
		name := fmt.Sprintf("/data/train/part-%05d-of-%05d.recordio", file, (tasks+chunksPerFile-1)/chunksPerFile)
		if err := table.Add(taskqueue.File{Path: name, Size: offset, ModTime: 1_700_000_000_000_000_000}, chunks); err != nil {
			return nil, err
		}
	}
	table.Group(1)
	return table, nil
}
