package taskqueue

import (
	"fmt"
	"sort"

	"trainmaster/recordio"
)

// File is one file of a dataset as it was when it was indexed. ModTime (Unix
// nanoseconds) and Size serve to notice a file that was replaced since.
type File struct {
	Path    string
	Size    int64
	ModTime int64
}

// Table is the immutable task table of one dataset: all chunks of all files in
// sorted order, in columns of 8 bytes a chunk, cut into tasks of ChunksPerTask
// consecutive chunks. It is safe for concurrent reading.
type Table struct {
	chunksPerTask int
	files         []tableFile
	sizes         []uint32 // compressed payload bytes, a chunk each
	records       []uint32
	anchors       []int64 // file offset of every anchorEvery-th chunk
	mixed         map[int][]byte
	totalRecords  int64
}

type tableFile struct {
	File
	first       int // first chunk
	layout      uint8
	compression uint8 // of all chunks, or mixedCompression
}

const (
	chunkHeader      = 20
	anchorEvery      = 64
	mixedCompression = 0xff
)

// NewTable returns an empty table with room for the given number of chunks.
func NewTable(chunks int) *Table {
	return &Table{
		chunksPerTask: 1,
		sizes:         make([]uint32, 0, chunks),
		records:       make([]uint32, 0, chunks),
		anchors:       make([]int64, 0, (chunks+anchorEvery-1)/anchorEvery),
		mixed:         map[int][]byte{},
	}
}

// Add appends a file with its chunks, which must lie back to back from offset 0.
func (t *Table) Add(f File, chunks []recordio.Index) error {
	if len(chunks) == 0 {
		return fmt.Errorf("file %q: expected at least one chunk, found none", f.Path)
	}
	offset := int64(0)
	for i, c := range chunks {
		if c.Offset != offset {
			return fmt.Errorf("file %q: chunk %d: expected at offset %d, found at %d", f.Path, i, offset, c.Offset)
		}
		offset += chunkHeader + int64(c.Size)
	}
	t.startFile(f, uint8(chunks[0].Layout))
	for _, c := range chunks {
		t.push(c.Size, c.Records, uint8(c.Compression))
	}
	return nil
}

func (t *Table) startFile(f File, layout uint8) {
	t.files = append(t.files, tableFile{File: f, first: len(t.sizes), layout: layout})
}

func (t *Table) push(size, records uint32, compression uint8) {
	n, at := len(t.sizes), len(t.files)-1
	f := &t.files[at]
	switch {
	case n == f.first:
		f.compression = compression
	case f.compression == mixedCompression:
		t.mixed[at] = append(t.mixed[at], compression)
	case f.compression != compression:
		kinds := make([]byte, n-f.first, n-f.first+1)
		for i := range kinds {
			kinds[i] = f.compression
		}
		t.mixed[at], f.compression = append(kinds, compression), mixedCompression
	}
	if n%anchorEvery == 0 {
		offset := int64(0)
		if n > f.first {
			offset = t.offset(n-1) + chunkHeader + int64(t.sizes[n-1])
		}
		t.anchors = append(t.anchors, offset)
	}
	t.sizes = append(t.sizes, size)
	t.records = append(t.records, records)
	t.totalRecords += int64(records)
}

// Group fixes how many consecutive chunks make a task, at least one.
func (t *Table) Group(chunksPerTask int) { t.chunksPerTask = max(1, chunksPerTask) }

// ChunksPerTask returns what Group fixed.
func (t *Table) ChunksPerTask() int { return t.chunksPerTask }

// Chunks returns the number of chunks.
func (t *Table) Chunks() int { return len(t.sizes) }

// Tasks returns the number of tasks.
func (t *Table) Tasks() int { return (len(t.sizes) + t.chunksPerTask - 1) / t.chunksPerTask }

// Records returns the number of records in all chunks.
func (t *Table) Records() int64 { return t.totalRecords }

// Files returns the files in the table's order.
func (t *Table) Files() []File {
	files := make([]File, len(t.files))
	for i, f := range t.files {
		files[i] = f.File
	}
	return files
}

// TaskRecords returns the number of records in a task.
func (t *Table) TaskRecords(index int) int {
	n := 0
	for _, r := range t.records[index*t.chunksPerTask : min((index+1)*t.chunksPerTask, len(t.records))] {
		n += int(r)
	}
	return n
}

// TaskChunks builds the chunks of a task, 0 <= index < Tasks().
func (t *Table) TaskChunks(index int) []Chunk {
	first, last := index*t.chunksPerTask, min((index+1)*t.chunksPerTask, len(t.sizes))
	chunks := make([]Chunk, 0, last-first)
	at := t.fileOf(first)
	offset := t.offset(first)
	for c := first; c < last; c++ {
		if at+1 < len(t.files) && c == t.files[at+1].first {
			at++
			offset = 0
		}
		f := &t.files[at]
		compression := f.compression
		if compression == mixedCompression {
			compression = t.mixed[at][c-f.first]
		}
		chunks = append(chunks, Chunk{Idx: c - f.first, Path: f.Path, Index: recordio.Index{
			Offset: offset, Size: t.sizes[c], Records: t.records[c],
			Compression: recordio.Compression(compression), Layout: recordio.Layout(f.layout),
		}})
		offset += chunkHeader + int64(t.sizes[c])
	}
	return chunks
}

// TaskFiles returns the files that a task's chunks lie in, in their order.
func (t *Table) TaskFiles(index int) []File {
	first, last := index*t.chunksPerTask, min((index+1)*t.chunksPerTask, len(t.sizes))
	var files []File
	for at := t.fileOf(first); at < len(t.files) && t.files[at].first < last; at++ {
		files = append(files, t.files[at].File)
	}
	return files
}

// fileOf returns the file that holds a chunk.
func (t *Table) fileOf(chunk int) int {
	return sort.Search(len(t.files), func(i int) bool { return t.files[i].first > chunk }) - 1
}

// offset returns where a chunk begins in its file, from the nearest anchor.
func (t *Table) offset(chunk int) int64 {
	first := t.files[t.fileOf(chunk)].first
	from, offset := chunk/anchorEvery*anchorEvery, int64(0)
	if from > first {
		offset = t.anchors[chunk/anchorEvery]
	} else {
		from = first
	}
	for c := from; c < chunk; c++ {
		offset += chunkHeader + int64(t.sizes[c])
	}
	return offset
}

// Part is a stored piece of a table: some consecutive chunks with the files they
// lie in. A file's chunks may go on in the next part, under the same path. Sizes
// and record counts are byte planes (all lowest bytes first, all highest last):
// gzip then sees the nearly constant high bytes as runs.
type Part struct {
	First        int // first chunk
	Paths        []string
	Bytes        []int64 // file sizes
	ModTimes     []int64
	Layouts      []byte
	Counts       []int // chunks of each file in this part
	Sizes        []byte
	Records      []byte
	Compressions []byte
}

// Part cuts count chunks from first on.
func (t *Table) Part(first, count int) Part {
	p := Part{First: first, Sizes: make([]byte, 4*count), Records: make([]byte, 4*count), Compressions: make([]byte, count)}
	toPlanes(p.Sizes, t.sizes[first:first+count])
	toPlanes(p.Records, t.records[first:first+count])
	for at := t.fileOf(first); at < len(t.files) && t.files[at].first < first+count; at++ {
		f := &t.files[at]
		end := len(t.sizes)
		if at+1 < len(t.files) {
			end = t.files[at+1].first
		}
		from, to := max(first, f.first), min(first+count, end)
		p.Paths = append(p.Paths, f.Path)
		p.Bytes = append(p.Bytes, f.Size)
		p.ModTimes = append(p.ModTimes, f.ModTime)
		p.Layouts = append(p.Layouts, f.layout)
		p.Counts = append(p.Counts, to-from)
		for c := from; c < to; c++ {
			kind := f.compression
			if kind == mixedCompression {
				kind = t.mixed[at][c-f.first]
			}
			p.Compressions[c-first] = kind
		}
	}
	return p
}

// AddPart appends the next part of a stored table.
func (t *Table) AddPart(p *Part) error {
	n := len(p.Compressions)
	total := 0
	for _, c := range p.Counts {
		if c <= 0 || c > n {
			return fmt.Errorf("part at chunk %d: a file with %d chunks in a part of %d", p.First, c, n)
		}
		total += c
	}
	files := len(p.Paths)
	switch {
	case p.First != len(t.sizes):
		return fmt.Errorf("expected the part at chunk %d, found the one at %d", len(t.sizes), p.First)
	case total != n, len(p.Sizes) != 4*n, len(p.Records) != 4*n:
		return fmt.Errorf("part at chunk %d: columns of different length", p.First)
	case len(p.Counts) != files, len(p.Bytes) != files, len(p.ModTimes) != files, len(p.Layouts) != files:
		return fmt.Errorf("part at chunk %d: file columns of different length", p.First)
	}
	c := 0
	for i, path := range p.Paths {
		if i > 0 || len(t.files) == 0 || t.files[len(t.files)-1].Path != path {
			t.startFile(File{Path: path, Size: p.Bytes[i], ModTime: p.ModTimes[i]}, p.Layouts[i])
		}
		for range p.Counts[i] {
			t.push(plane(p.Sizes, c, n), plane(p.Records, c, n), p.Compressions[c])
			c++
		}
	}
	return nil
}

func toPlanes(dst []byte, values []uint32) {
	n := len(values)
	for i, v := range values {
		dst[i], dst[n+i], dst[2*n+i], dst[3*n+i] = byte(v), byte(v>>8), byte(v>>16), byte(v>>24)
	}
}

func plane(planes []byte, i, n int) uint32 {
	return uint32(planes[i]) | uint32(planes[n+i])<<8 | uint32(planes[2*n+i])<<16 | uint32(planes[3*n+i])<<24
}
