package taskqueue

import (
	"bytes"
	"encoding/gob"
	"fmt"
	"math"
	"strings"
	"testing"

	"trainmaster/recordio"
)

// The size bound of a chunk holds for all values of its fields.
func TestChunkBytesBoundTheEncoding(t *testing.T) {
	size := func(chunks int) int {
		task := Task{Index: math.MaxInt64, Token: Token{math.MaxUint32, math.MaxUint8, math.MaxInt64, math.MaxUint32, math.MaxInt64, math.MaxUint32}}
		for range chunks {
			task.Chunks = append(task.Chunks, Chunk{Idx: math.MinInt64, Path: strings.Repeat("x", 1000), Index: recordio.Index{
				Offset: math.MinInt64, Size: math.MaxUint32, Records: math.MaxUint32, Compression: math.MaxUint8, Layout: math.MaxUint8, Checksum: math.MaxUint32,
			}})
		}
		var b bytes.Buffer
		if err := gob.NewEncoder(&b).Encode(task); err != nil {
			t.Fatal(err)
		}
		return b.Len()
	}
	if each := (size(1001) - size(1)) / 1000; each > 1000+chunkBytes {
		t.Errorf("a chunk takes %d bytes besides its path, more than %d", each-1000, chunkBytes)
	}
	if size(1) > 1<<20-chunkBytes {
		t.Errorf("a task of one chunk takes %d bytes", size(1))
	}
}

// pathsTable returns a table with one file per element: chunks has the number of chunks, length the length of the
// path.
func pathsTable(t *testing.T, chunks, length []int) *Table {
	t.Helper()
	table := NewTable(0)
	for i, n := range chunks {
		list := make([]recordio.Index, n)
		offset := int64(0)
		for k := range list {
			list[k] = recordio.Index{Offset: offset, Size: 1, Records: 1, Layout: recordio.First}
			offset = list[k].End()
		}
		path := fmt.Sprintf("/%05d", i) + strings.Repeat("p", length[i])
		if err := table.Add(File{Path: path, Size: offset}, list); err != nil {
			t.Fatal(err)
		}
	}
	return table
}

func TestTasksAreGroupedWithinTheirSize(t *testing.T) {
	for name, c := range map[string]struct {
		chunks, length []int
		perTask, max   int
		want           int
		fits           bool
	}{
		"all fit":              {[]int{100}, []int{100}, 10, 10 * 170, 10, true},
		"one byte too many":    {[]int{100}, []int{100}, 10, 10*170 - 1, 9, true},
		"more than there are":  {[]int{7}, []int{100}, 1 << 40, 1 << 20, 7, true},
		"a long path of many":  {[]int{10, 5, 10}, []int{0, 930, 0}, 10, 2500, 2, true},
		"one chunk a task":     {[]int{10}, []int{930}, 10, 1000, 1, true},
		"a chunk is too large": {[]int{10}, []int{930}, 10, 999, 1, false},
		"no chunk":             {nil, nil, 10, 1, 1, true},
	} {
		table := pathsTable(t, c.chunks, c.length)
		got, fits := table.GroupWithin(c.perTask, c.max)
		if got != c.want || fits != c.fits || table.ChunksPerTask() != got {
			t.Errorf("%s: %d chunks a task, fits %v, expected %d, %v", name, got, fits, c.want, c.fits)
		}
		largest := 0
		for i := range table.Tasks() {
			size := 0
			for _, chunk := range table.TaskChunks(i) {
				size += len(chunk.Path) + chunkBytes
			}
			largest = max(largest, size)
		}
		if table.LargestTask() != largest {
			t.Errorf("%s: the largest task takes %d bytes, expected %d", name, table.LargestTask(), largest)
		}
	}
}
