package taskqueue

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"sort"

	"trainmaster/recordio"
)

// File is one file of a dataset as it was when it was indexed. ModTime (Unix
// nanoseconds) and Size serve to notice a file that was replaced since, and ETag an
// object in a store. ETag is empty for a file of the local file system.
type File struct {
	Path    string
	Size    int64
	ModTime int64
	ETag    string
}

// Table is the immutable task table of one dataset: all chunks of all files in
// sorted order, in columns of 12 bytes a chunk, cut into tasks of ChunksPerTask
// consecutive chunks. It is safe for concurrent reading.
type Table struct {
	chunksPerTask int
	files         []tableFile
	sizes         []uint32 // compressed payload bytes of each chunk
	records       []uint32
	checksums     []uint32 // of the stored payloads; nil in a table of an earlier release

	anchors      []int64        // file offset of every anchorEvery-th chunk
	counts       []int64        // records of the file before every anchorEvery-th chunk
	mixed        map[int][]byte // file -> compression of each chunk, if they differ
	end          int64          // of the last chunk in the last file
	count        int64          // records of the last file
	totalRecords int64
}

type tableFile struct {
	File
	first, last int   // its chunks: from first, before last
	layout      uint8 // a recordio.Layout: it has the rule of offsets
	compression uint8 // of all chunks, or mixedCompression
}

// extent is the distance from a chunk of the file to the next, by the rule of its format.
func (f *tableFile) extent(size, records uint32) int64 {
	return recordio.Layout(f.layout).Extent(size, records)
}

const (
	anchorEvery      = 64
	mixedCompression = 0xff
	maxRoom          = 1 << 24 // chunks that NewTable makes room for on the word of a number that was stored
)

// NewTable returns an empty table with room for about the given number of chunks.
func NewTable(chunks int) *Table {
	chunks = min(max(chunks, 0), maxRoom)
	return &Table{
		chunksPerTask: 1,
		sizes:         make([]uint32, 0, chunks),
		records:       make([]uint32, 0, chunks),
		anchors:       make([]int64, 0, (chunks+anchorEvery-1)/anchorEvery),
		counts:        make([]int64, 0, (chunks+anchorEvery-1)/anchorEvery),
		mixed:         map[int][]byte{},
	}
}

// Add appends a file with its chunks, which must lie back to back from offset 0 in one
// layout.
func (t *Table) Add(f File, chunks []recordio.Index) error {
	if len(chunks) == 0 {
		return fmt.Errorf("file %q: expected at least one chunk, found none", f.Path)
	}
	offset := int64(0)
	for i, c := range chunks {
		switch {
		case c.Offset != offset:
			return fmt.Errorf("file %q: chunk %d: expected at offset %d, found at %d", f.Path, i, offset, c.Offset)
		case c.Layout != chunks[0].Layout:
			return fmt.Errorf("file %q: chunk %d at offset %d: expected the %v layout as before, found the %v one", f.Path, i, offset, chunks[0].Layout, c.Layout)
		}
		offset = c.End()
	}
	t.startFile(f, uint8(chunks[0].Layout))
	kinds := make([]byte, len(chunks))
	for i, c := range chunks {
		t.sizes = append(t.sizes, c.Size)
		t.records = append(t.records, c.Records)
		t.checksums = append(t.checksums, c.Checksum)
		kinds[i] = uint8(c.Compression)
	}
	t.take(kinds)
	return nil
}

func (t *Table) startFile(f File, layout uint8) {
	first := 0
	if n := len(t.files); n > 0 {
		first = t.files[n-1].last
	}
	t.files = append(t.files, tableFile{File: f, first: first, last: first, layout: layout})
	t.end, t.count = 0, 0
}

// take gives the next len(kinds) chunks, whose sizes and records stand in their columns, to
// the last file.
func (t *Table) take(kinds []byte) {
	at := len(t.files) - 1
	f := &t.files[at]
	first := f.last
	f.last += len(kinds)
	if first == f.first {
		f.compression = kinds[0]
	}
	switch {
	case f.compression == mixedCompression:
		t.mixed[at] = append(t.mixed[at], kinds...)
	case bytes.Count(kinds, []byte{f.compression}) < len(kinds):
		t.mixed[at] = append(bytes.Repeat([]byte{f.compression}, first-f.first), kinds...)
		f.compression = mixedCompression
	}
	end, records := t.end, t.count
	for c := first; c < f.last; c++ {
		if c%anchorEvery == 0 {
			t.anchors = append(t.anchors, end)
			t.counts = append(t.counts, records)
		}
		end += f.extent(t.sizes[c], t.records[c])
		records += int64(t.records[c])
	}
	t.totalRecords += records - t.count
	t.end, t.count = end, records
}

// IndexDigest is the SHA-256 of the known facts about the chunks of a file: two files with the same digest have equally many
// records in equally many chunks, of the same sizes.
func (t *Table) IndexDigest(file int) [sha256.Size]byte {
	f := &t.files[file]
	sum := sha256.New()
	row := make([]byte, 0, 10)
	for i := f.first; i < f.last; i++ {
		kind := f.compression
		if kind == mixedCompression {
			kind = t.mixed[file][i-f.first]
		}
		row = binary.LittleEndian.AppendUint32(row[:0], t.sizes[i])
		row = binary.LittleEndian.AppendUint32(row, t.records[i])
		sum.Write(append(row, f.layout, kind))
	}
	return [sha256.Size]byte(sum.Sum(nil))
}

// ChecksumsDigest is the SHA-256 of the checksums of the chunks of a file: two files with the same one have the same records.
// known is false in a table of an earlier release.
func (t *Table) ChecksumsDigest(file int) (digest [sha256.Size]byte, known bool) {
	if t.checksums == nil {
		return digest, false
	}
	f := &t.files[file]
	sum := sha256.New()
	for _, checksum := range t.checksums[f.first:f.last] {
		sum.Write(binary.LittleEndian.AppendUint32(nil, checksum))
	}
	return [sha256.Size]byte(sum.Sum(nil)), true
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
		if c == t.files[at].last {
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
			Compression: recordio.Compression(compression), Layout: recordio.Layout(f.layout), Checksum: t.checksum(c),
		}})
		offset += f.extent(t.sizes[c], t.records[c])
	}
	return chunks
}

// checksum returns the checksum of a chunk, 0 if it is not known.
func (t *Table) checksum(chunk int) uint32 {
	if t.checksums == nil {
		return 0
	}
	return t.checksums[chunk]
}

// TaskFiles returns the files with the task's chunks, in their order.
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
	f := &t.files[t.fileOf(chunk)]
	from, offset := chunk/anchorEvery*anchorEvery, int64(0)
	if from > f.first {
		offset = t.anchors[chunk/anchorEvery]
	} else {
		from = f.first
	}
	for c := from; c < chunk; c++ {
		offset += f.extent(t.sizes[c], t.records[c])
	}
	return offset
}

// Part is a stored part of a table: some consecutive chunks with their files. A file's chunks may continue in the next part,
// under the same path. Sizes and record counts are byte planes (all lowest bytes first, all highest last): gzip then sees the
// nearly constant high bytes as runs.
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
	Checksums    []byte   // absent in tables of earlier releases
	ETags        []string // of the files; absent without objects in a store
}

// Part cuts count chunks from first on.
func (t *Table) Part(first, count int) Part {
	p := Part{First: first, Sizes: make([]byte, 4*count), Records: make([]byte, 4*count), Compressions: make([]byte, count)}
	toPlanes(p.Sizes, t.sizes[first:first+count])
	toPlanes(p.Records, t.records[first:first+count])
	if t.checksums != nil {
		p.Checksums = make([]byte, 4*count)
		toPlanes(p.Checksums, t.checksums[first:first+count])
	}
	var etags []string
	for at := t.fileOf(first); at < len(t.files) && t.files[at].first < first+count; at++ {
		f := &t.files[at]
		from, to := max(first, f.first), min(first+count, f.last)
		p.Paths = append(p.Paths, f.Path)
		p.Bytes = append(p.Bytes, f.Size)
		p.ModTimes = append(p.ModTimes, f.ModTime)
		p.Layouts = append(p.Layouts, f.layout)
		p.Counts = append(p.Counts, to-from)
		etags = append(etags, f.ETag)
		for c := from; c < to; c++ {
			kind := f.compression
			if kind == mixedCompression {
				kind = t.mixed[at][c-f.first]
			}
			p.Compressions[c-first] = kind
		}
	}
	if slices.ContainsFunc(etags, func(etag string) bool { return etag != "" }) {
		p.ETags = etags
	}
	return p
}

// file returns a file of the part.
func (p *Part) file(i int) File {
	f := File{Path: p.Paths[i], Size: p.Bytes[i], ModTime: p.ModTimes[i]}
	if len(p.ETags) > 0 {
		f.ETag = p.ETags[i]
	}
	return f
}

// AddPart appends the next part of a stored table. It refuses a damaged part completely.
func (t *Table) AddPart(p *Part) error {
	if err := t.checkPart(p); err != nil {
		return fmt.Errorf("part at chunk %d: %w", p.First, err)
	}
	n := len(p.Compressions)
	t.sizes = appendPlanes(t.sizes, p.Sizes)
	t.records = appendPlanes(t.records, p.Records)
	if len(p.Checksums) > 0 {
		if t.checksums == nil {
			t.checksums = make([]uint32, 0, cap(t.sizes))
		}
		t.checksums = appendPlanes(t.checksums, p.Checksums)
	}
	c := 0
	for i, path := range p.Paths {
		if i > 0 || !t.goesOn(path) {
			t.startFile(p.file(i), p.Layouts[i])
		}
		t.take(p.Compressions[c : c+p.Counts[i] : n])
		c += p.Counts[i]
	}
	return nil
}

// goesOn reports whether a path equals the path of the last file.
func (t *Table) goesOn(path string) bool {
	return len(t.files) > 0 && t.files[len(t.files)-1].Path == path
}

func (t *Table) checkPart(p *Part) error {
	n, files := len(p.Compressions), len(p.Paths)
	switch {
	case p.First != len(t.sizes):
		return fmt.Errorf("expected the part at chunk %d", len(t.sizes))
	case len(p.Sizes) != 4*n, len(p.Records) != 4*n:
		return fmt.Errorf("expected columns of %d chunks, found %d and %d bytes", n, len(p.Sizes), len(p.Records))
	case len(p.Checksums) != 0 && len(p.Checksums) != 4*n, n > 0 && len(t.sizes) > 0 && (len(p.Checksums) == 0) != (t.checksums == nil):
		return fmt.Errorf("expected checksums of all chunks or of none, found %d bytes of %d chunks", len(p.Checksums), n)
	case len(p.Counts) != files, len(p.Bytes) != files, len(p.ModTimes) != files, len(p.Layouts) != files:
		return fmt.Errorf("expected columns of %d files, found %d, %d, %d and %d entries", files, len(p.Counts), len(p.Bytes), len(p.ModTimes), len(p.Layouts))
	}
	if len(p.ETags) != 0 && len(p.ETags) != files {
		return fmt.Errorf("expected ETags of %d files or of none, found %d", files, len(p.ETags))
	}
	at := 0
	for i, path := range p.Paths {
		if p.Counts[i] <= 0 || p.Counts[i] > n-at {
			return fmt.Errorf("file %q: expected at most %[3]d chunks, found %[2]d", path, p.Counts[i], n-at)
		}
		l, most := recordio.Layout(p.Layouts[i]), recordio.Gzip
		switch {
		case l == recordio.TFRecord:
			most = recordio.Zlib
		case l == recordio.Range, l == recordio.Parquet:
			most = recordio.None
		case !l.Valid():
			return fmt.Errorf("file %q: unknown layout %d", path, l)
		}
		//guard:tfrecord-checksums-required
		if (l == recordio.TFRecord || l == recordio.Parquet) && len(p.Checksums) == 0 {
			return fmt.Errorf("file %q: expected checksums of the chunks of a %v file, found none", path, l)
		}
		for c, kind := range p.Compressions[at : at+p.Counts[i]] {
			if kind > uint8(most) {
				return fmt.Errorf("file %q: chunk %d: unknown compression %d", path, p.First+at+c, kind)
			}
		}
		at += p.Counts[i]
	}
	if at != n {
		return fmt.Errorf("expected a file for each chunk, found %d chunks without one", n-at)
	}
	if n > 0 && t.goesOn(p.Paths[0]) {
		last := t.files[len(t.files)-1]
		if again := p.file(0); last.File != again || last.layout != p.Layouts[0] {
			return fmt.Errorf("file %q continues as another file: expected %+v in layout %d, found %+v in layout %d", last.Path, last.File, last.layout, again, p.Layouts[0])
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

// appendPlanes undoes toPlanes.
func appendPlanes(dst []uint32, planes []byte) []uint32 {
	n := len(planes) / 4
	at := len(dst)
	dst = slices.Grow(dst, n)[:at+n]
	b0, b1, b2, b3 := planes[:n], planes[n:][:n], planes[2*n:][:n], planes[3*n:][:n]
	out := dst[at:][:n]
	for i := range out {
		out[i] = uint32(b0[i]) | uint32(b1[i])<<8 | uint32(b2[i])<<16 | uint32(b3[i])<<24
	}
	return dst
}
