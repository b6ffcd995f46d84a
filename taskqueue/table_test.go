package taskqueue

import (
	"bytes"
	"encoding/gob"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"trainmaster/recordio"
)

// literal is a table as a list of chunks.
type literal struct {
	table  *Table
	chunks []Chunk
	files  []File // of each chunk
}

// randomTable adds RecordIO files of 1 to maxChunks chunks; some files mix compressions.
func randomTable(t testing.TB, r *rand.Rand, files, maxChunks int) literal {
	t.Helper()
	return randomTableOf(t, r, files, maxChunks, func(int) recordio.Layout { return 0 })
}

// randomTableOf also adds TFRecord and Parquet files and ranges; layout 0 stands for RecordIO. A compressed TFRecord file has one chunk.
func randomTableOf(t testing.TB, r *rand.Rand, files, maxChunks int, layoutOf func(file int) recordio.Layout) literal {
	t.Helper()
	l := literal{table: NewTable(files)}
	for i := range files {
		path := fmt.Sprintf("/data/part-%05d", i)
		layout := recordio.Layout(1 + r.IntN(2))
		kind := recordio.Compression(r.IntN(3))
		mixed := r.IntN(3) == 0
		chunks := make([]recordio.Index, 1+r.IntN(maxChunks))
		format := layoutOf(i)
		if format == recordio.Range || format == recordio.Parquet {
			layout, mixed, kind = format, false, recordio.None
		}
		if format == recordio.TFRecord {
			layout, mixed, kind = recordio.TFRecord, false, []recordio.Compression{recordio.None, recordio.Gzip, recordio.Zlib}[kind]
			if kind != recordio.None {
				chunks = chunks[:1]
			}
		}
		offset := int64(0)
		for c := range chunks {
			if mixed {
				kind = recordio.Compression(r.IntN(3))
			}
			chunks[c] = recordio.Index{Offset: offset, Size: r.Uint32() >> r.IntN(32), Records: r.Uint32() >> r.IntN(32), Compression: kind, Layout: layout, Checksum: r.Uint32()}
			if format == recordio.Range {
				chunks[c].Size, chunks[c].Checksum = 0, 0
			}
			offset = chunks[c].End()
			l.chunks = append(l.chunks, Chunk{Idx: c, Path: path, Index: chunks[c]})
		}
		f := File{Path: path, Size: offset, ModTime: r.Int64()}
		for range chunks {
			l.files = append(l.files, f)
		}
		if err := l.table.Add(f, chunks); err != nil {
			t.Fatal(err)
		}
	}
	return l
}

// storedTable returns a table with a file and two objects of stores. The second object has the parameters of its store.
func storedTable(t testing.TB) literal {
	l := literal{table: NewTable(0)}
	for i, f := range []File{
		{Path: "/data/part-00000", ModTime: 1_700_000_000_000_000_000},
		{Path: "gs://bucket/data/part-00001", ModTime: 1_700_000_000_000_000_000, ETag: "1700000000000001"},
		{Path: "s3://bucket/data/part-00002?endpoint=http%3A%2F%2F127.0.0.1%3A9000&use_path_style=true", ModTime: 1_700_000_000_000_000_000, ETag: `"9a0364b9e99bb480dd25e1f0284c8555"`},
	} {
		chunks := make([]recordio.Index, 2)
		for c := range chunks {
			chunks[c] = recordio.Index{Offset: f.Size, Size: uint32(100 + 10*i + c), Records: 10, Layout: recordio.First, Checksum: uint32(i + c)}
			f.Size = chunks[c].End()
		}
		for c := range chunks {
			l.chunks, l.files = append(l.chunks, Chunk{Idx: c, Path: f.Path, Index: chunks[c]}), append(l.files, f)
		}
		if err := l.table.Add(f, chunks); err != nil {
			t.Fatal(err)
		}
	}
	return l
}

// requireSame compares a table, grouped by perTask, with the list.
func (l literal) requireSame(t *testing.T, table *Table, perTask int) {
	t.Helper()
	table.Group(perTask)
	tasks := (len(l.chunks) + perTask - 1) / perTask
	if table.Tasks() != tasks || table.Chunks() != len(l.chunks) || table.ChunksPerTask() != perTask {
		t.Fatalf("%d tasks of %d chunks, %d a task; expected %d of %d, %d", table.Tasks(), table.Chunks(), table.ChunksPerTask(), tasks, len(l.chunks), perTask)
	}
	records := int64(0)
	before := map[string]int64{} // records of each file in the tasks before
	for task := range tasks {
		first, last := task*perTask, min((task+1)*perTask, len(l.chunks))
		if got := table.TaskChunks(task); !reflect.DeepEqual(got, l.chunks[first:last]) {
			t.Fatalf("task %d:\n got      %+v\n expected %+v", task, got, l.chunks[first:last])
		}
		if got, want := table.TaskFiles(task), slices.Compact(slices.Clone(l.files[first:last])); !reflect.DeepEqual(got, want) {
			t.Fatalf("task %d: files %+v, expected %+v", task, got, want)
		}
		n := 0
		var ranges []RecordRange
		for i, c := range l.chunks[first:last] {
			n += int(c.Index.Records)
			if k := len(ranges) - 1; k < 0 || ranges[k].Path != c.Path || c.Index.Layout == recordio.Parquet {
				ranges = append(ranges, RecordRange{File: l.files[first+i], Layout: c.Index.Layout, First: before[c.Path], Offset: c.Index.Offset})
			}
			r := &ranges[len(ranges)-1]
			r.Records += int64(c.Index.Records)
			switch c.Index.Layout {
			case recordio.Range:
				r.Offset = 0
			case recordio.Parquet:
				r.Offset, r.RowGroup = 0, int64(c.Idx)
			default:
				r.Length += c.Index.End() - c.Index.Offset
			}
			before[c.Path] += int64(c.Index.Records)
		}
		if got := table.TaskRanges(task); !reflect.DeepEqual(got, ranges) {
			t.Fatalf("task %d: ranges %+v, expected %+v", task, got, ranges)
		}
		if got := table.TaskRecords(task); got != n {
			t.Fatalf("task %d: %d records, expected %d", task, got, n)
		}
		records += int64(n)
	}
	if table.Records() != records {
		t.Fatalf("%d records, expected %d", table.Records(), records)
	}
	if got, want := table.Files(), slices.Compact(slices.Clone(l.files)); !reflect.DeepEqual(got, want) {
		t.Fatalf("files %+v, expected %+v", got, want)
	}
}

func anyLayout(r *rand.Rand) func(int) recordio.Layout {
	return func(int) recordio.Layout {
		return []recordio.Layout{0, 0, recordio.TFRecord, recordio.Range, recordio.Parquet}[r.IntN(5)]
	}
}

func TestTable(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 0))
		l := randomTableOf(t, r, 1+r.IntN(8), 300, anyLayout(r))
		for _, perTask := range []int{1, 2, 7, 64, 1000} {
			l.requireSame(t, l.table, perTask)
		}
	}
}

// Parts of any size restore the table: files span parts, and tasks span files and parts.
func TestTableParts(t *testing.T) {
	for seed := range uint64(10) {
		r := rand.New(rand.NewPCG(seed, 1))
		l := randomTableOf(t, r, 1+r.IntN(8), 200, anyLayout(r))
		for _, size := range []int{1, 2, 63, 64, 65, 100, len(l.chunks)} {
			table := NewTable(0)
			for first := 0; first < len(l.chunks); first += size {
				p := l.table.Part(first, min(size, len(l.chunks)-first))
				if err := table.AddPart(&p); err != nil {
					t.Fatal(err)
				}
			}
			l.requireSame(t, table, 5)
		}
	}
}

func TestTableRefusesFiles(t *testing.T) {
	for name, chunks := range map[string][]recordio.Index{
		"at least one chunk":  {},
		"expected at offset":  {{Offset: 0, Size: 10}, {Offset: 31, Size: 10}},
		"expected the first":  {{Offset: 0, Size: 10, Layout: recordio.First}, {Offset: 30, Size: 10, Layout: recordio.Second}},
		"found at 5":          {{Offset: 5, Size: 10}},
		"expected at offset ": {{Offset: 0, Size: 1<<32 - 1}, {Offset: 30}},
	} {
		table := NewTable(1)
		err := table.Add(File{Path: "/data/a"}, chunks)
		if err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "/data/a") {
			t.Errorf("%s: %v", name, err)
		}
		if table.Chunks() != 0 || len(table.Files()) != 0 {
			t.Errorf("%s: %d chunks after a refused file, expected 0", name, table.Chunks())
		}
	}
}

func TestTableRefusesDamagedParts(t *testing.T) {
	l := randomTable(t, rand.New(rand.NewPCG(3, 3)), 4, 50)
	half := len(l.chunks) / 2
	for l.chunks[half].Path != l.chunks[half-1].Path { // a file spans both parts
		half++
	}
	for name, damage := range map[string]func(p *Part){
		"first":             func(p *Part) { p.First++ },
		"negative first":    func(p *Part) { p.First = -1 },
		"sizes":             func(p *Part) { p.Sizes = p.Sizes[1:] },
		"records":           func(p *Part) { p.Records = append(p.Records, 0) },
		"checksums":         func(p *Part) { p.Checksums = p.Checksums[1:] },
		"no checksums":      func(p *Part) { p.Checksums = nil },
		"compressions":      func(p *Part) { p.Compressions = p.Compressions[1:] },
		"compression":       func(p *Part) { p.Compressions[3] = 3 },
		"mixed compression": func(p *Part) { p.Compressions[0] = mixedCompression },
		"layout":            func(p *Part) { p.Layouts[0] = 0 },
		"layouts":           func(p *Part) { p.Layouts = nil },
		"bytes":             func(p *Part) { p.Bytes = p.Bytes[1:] },
		"ETags":             func(p *Part) { p.ETags = slices.Repeat([]string{"1"}, len(p.Paths)+1) },
		"times":             func(p *Part) { p.ModTimes = append(p.ModTimes, 1) },
		"counts":            func(p *Part) { p.Counts = p.Counts[1:] },
		"no count":          func(p *Part) { p.Counts[0] = 0 },
		"negative count":    func(p *Part) { p.Counts[0] = -1 },
		"huge counts": func(p *Part) {
			p.Counts[0] = 1<<63 - 1
		},
		"fewer than chunks":  func(p *Part) { p.Counts[0]-- },
		"paths":              func(p *Part) { p.Paths = append(p.Paths, "x") },
		"other size":         func(p *Part) { p.Bytes[0]++ },
		"other time":         func(p *Part) { p.ModTimes[0]++ },
		"other ETag":         func(p *Part) { p.ETags = slices.Repeat([]string{"other"}, len(p.Paths)) },
		"other layout":       func(p *Part) { p.Layouts[0] = 3 - p.Layouts[0] },
		"chunks of no file":  func(p *Part) { p.Paths, p.Counts, p.Bytes, p.ModTimes, p.Layouts = nil, nil, nil, nil, nil },
		"more than all left": func(p *Part) { p.Counts[0] += 1 },
	} {
		t.Run(name, func(t *testing.T) {
			first, second := l.table.Part(0, half), l.table.Part(half, len(l.chunks)-half)
			table := NewTable(0)
			if err := table.AddPart(&first); err != nil {
				t.Fatal(err)
			}
			damage(&second)
			if err := table.AddPart(&second); err == nil {
				t.Fatal("accepted")
			}
			if table.Chunks() != half {
				t.Fatalf("%d chunks after a refused part, expected %d", table.Chunks(), half)
			}
			good := l.table.Part(half, len(l.chunks)-half)
			if err := table.AddPart(&good); err != nil {
				t.Fatal(err)
			}
			l.requireSame(t, table, 3)
		})
	}
}

// A part with TFRecord files has checksums, and only their compressions.
func TestTableRefusesDamagedTFRecordParts(t *testing.T) {
	l := randomTableOf(t, rand.New(rand.NewPCG(3, 3)), 4, 50, func(int) recordio.Layout { return recordio.TFRecord })
	for want, damage := range map[string]func(p *Part){
		"expected checksums of the chunks of a tfrecord file": func(p *Part) { p.Checksums = nil },
		"chunk 0: unknown compression 4":                      func(p *Part) { p.Compressions[0] = 4 },
		"unknown layout 9":                                    func(p *Part) { p.Layouts[1] = 9 },
		"chunk 0: unknown compression 3":                      func(p *Part) { p.Layouts[0], p.Compressions[0] = 1, 3 },
	} {
		p, table := l.table.Part(0, len(l.chunks)), NewTable(0)
		damage(&p)
		if err := table.AddPart(&p); err == nil || !strings.Contains(err.Error(), want) || table.Chunks() != 0 {
			t.Errorf("found %v and %d chunks, expected %q", err, table.Chunks(), want)
		}
	}
}

// A part with Parquet files has checksums, and no compressions.
func TestTableRefusesDamagedParquetParts(t *testing.T) {
	l := randomTableOf(t, rand.New(rand.NewPCG(3, 3)), 4, 50, func(int) recordio.Layout { return recordio.Parquet })
	for want, damage := range map[string]func(p *Part){
		"expected checksums of the chunks of a parquet file": func(p *Part) { p.Checksums = nil },
		"chunk 0: unknown compression 1":                     func(p *Part) { p.Compressions[0] = 1 },
	} {
		p, table := l.table.Part(0, len(l.chunks)), NewTable(0)
		damage(&p)
		if err := table.AddPart(&p); err == nil || !strings.Contains(err.Error(), want) || table.Chunks() != 0 {
			t.Errorf("found %v and %d chunks, expected %q", err, table.Chunks(), want)
		}
	}
}

func BenchmarkAddPart(b *testing.B) {
	const chunks, files, part = 10_000_000, 10_000, 1 << 18
	r := rand.New(rand.NewPCG(1, 1))
	table := NewTable(chunks)
	for f := range files {
		list := make([]recordio.Index, chunks/files)
		offset := int64(0)
		for i := range list {
			list[i] = recordio.Index{Offset: offset, Size: 60_000 + uint32(r.IntN(8000)), Records: 60 + uint32(r.IntN(8)), Compression: recordio.Snappy, Layout: recordio.First}
			offset = list[i].End()
		}
		if err := table.Add(File{Path: fmt.Sprintf("/data/part-%05d", f), Size: offset}, list); err != nil {
			b.Fatal(err)
		}
	}
	var parts []Part
	for first := 0; first < chunks; first += part {
		parts = append(parts, table.Part(first, min(part, chunks-first)))
	}
	for b.Loop() {
		loaded := NewTable(chunks)
		for i := range parts {
			if err := loaded.AddPart(&parts[i]); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(float64(chunks)*float64(b.N)/b.Elapsed().Seconds()/1e6, "Mchunks/s")
}

// Indexes with different chunks have different digests, for a difference at any place.
func TestIndexDigest(t *testing.T) {
	digests := map[[32]byte]int{}
	for i, change := range []func(c *recordio.Index){
		func(*recordio.Index) {},
		func(c *recordio.Index) { c.Records++ },
		func(c *recordio.Index) { c.Size++ },
		func(c *recordio.Index) { c.Compression++ },
		func(*recordio.Index) {},
	} {
		table := NewTable(2)
		if err := table.Add(File{Path: "before"}, []recordio.Index{{Size: 5, Records: 5, Layout: 1}}); err != nil {
			t.Fatal(err)
		}
		chunks := []recordio.Index{{Size: 10, Records: 3, Layout: 1}, {Offset: recordio.HeaderSize + 10, Size: 10, Records: 3, Layout: 1}}
		change(&chunks[1])
		if err := table.Add(File{Path: "a"}, chunks); err != nil {
			t.Fatal(err)
		}
		sum := table.IndexDigest(1)
		if before, ok := digests[sum]; ok && i < 4 {
			t.Errorf("index %d has the digest of index %d", i, before)
		} else if i == 4 && (!ok || before != 0) {
			t.Error("same index: expected the same digest")
		}
		digests[sum] = i
	}
}

// Checksums have their own digest, because tables of earlier releases have none.
func TestChecksumsDigest(t *testing.T) {
	table := NewTable(2)
	for i, sums := range [][]uint32{{1, 2}, {1, 2}, {1, 3}} {
		chunks := []recordio.Index{{Size: 10, Records: 3, Layout: 1, Checksum: sums[0]}, {Offset: recordio.HeaderSize + 10, Size: 10, Records: 3, Layout: 1, Checksum: sums[1]}}
		if err := table.Add(File{Path: fmt.Sprint(i)}, chunks); err != nil {
			t.Fatal(err)
		}
	}
	var digests [3][32]byte
	for i := range digests {
		var known bool
		if digests[i], known = table.ChecksumsDigest(i); !known {
			t.Errorf("file %d: expected known checksums", i)
		}
	}
	if digests[0] != digests[1] || digests[0] == digests[2] {
		t.Errorf("digests: got %x", digests)
	}
	old := NewTable(0)
	part := table.Part(0, 6)
	part.Checksums = nil
	if err := old.AddPart(&part); err != nil {
		t.Fatal(err)
	}
	if _, known := old.ChecksumsDigest(0); known {
		t.Error("table without checksums: expected none")
	}
}

// Every earlier encoding of a part stays readable, as a master of its release stored it.
func TestGoldenParts(t *testing.T) {
	l := randomTable(t, rand.New(rand.NewPCG(9, 9)), 3, 6)
	now := l.table.Part(0, len(l.chunks))
	before := partBeforeChecksums{now.First, now.Paths, now.Bytes, now.ModTimes, now.Layouts, now.Counts, now.Sizes, now.Records, now.Compressions}
	mixed := randomTableOf(t, rand.New(rand.NewPCG(9, 9)), 3, 6, func(file int) recordio.Layout {
		return []recordio.Layout{recordio.TFRecord, 0, recordio.TFRecord}[file]
	})
	numbers := randomTableOf(t, rand.New(rand.NewPCG(9, 9)), 2, 6, func(int) recordio.Layout { return recordio.Range })
	groups := randomTableOf(t, rand.New(rand.NewPCG(9, 9)), 2, 6, func(int) recordio.Layout { return recordio.Parquet })
	stored := storedTable(t)
	unknown := literal{chunks: slices.Clone(l.chunks), files: l.files}
	for i := range unknown.chunks {
		unknown.chunks[i].Index.Checksum = 0
	}
	for name, stands := range map[string]struct {
		part any
		want literal
	}{
		"part-1": {before, unknown},
		"part-2": {beforeETags(now), l},
		"part-3": {beforeETags(mixed.table.Part(0, len(mixed.chunks))), mixed}, // with TFRecord files
		"part-4": {stored.table.Part(0, len(stored.chunks)), stored},           // with objects in a store
		"part-5": {numbers.table.Part(0, len(numbers.chunks)), numbers},        // of ranges
		"part-6": {groups.table.Part(0, len(groups.chunks)), groups},           // of Parquet files
	} {
		if *update {
			var b bytes.Buffer
			if err := gob.NewEncoder(&b).Encode(stands.part); err != nil {
				t.Fatal(err)
			}
			golden(t, name+".gob.hex", hex.Dump(b.Bytes()))
		}
		var stored Part
		if err := gob.NewDecoder(bytes.NewReader(undump(t, readGolden(t, name+".gob.hex")))).Decode(&stored); err != nil {
			t.Fatal(err)
		}
		table := NewTable(0)
		if err := table.AddPart(&stored); err != nil {
			t.Fatal(err)
		}
		stands.want.requireSame(t, table, 2)
	}
}

// A stored part is accepted with chunks that are adjacent in their files, or refused as a whole.
func FuzzAddPart(f *testing.F) {
	for _, name := range []string{"part-1", "part-2", "part-3", "part-4", "part-5", "part-6"} {
		f.Add(undump(f, readGolden(f, name+".gob.hex")))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var p Part
		if gob.NewDecoder(bytes.NewReader(data)).Decode(&p) != nil {
			return
		}
		table := NewTable(0)
		if err := table.AddPart(&p); err != nil {
			if table.Chunks() != 0 || len(table.Files()) != 0 {
				t.Errorf("%d chunks after %v, expected 0", table.Chunks(), err)
			}
			return
		}
		table.Group(3)
		end := int64(0)
		for task := range table.Tasks() {
			for _, c := range table.TaskChunks(task) {
				if c.Idx == 0 {
					end = 0
				}
				if c.Index.Offset != end {
					t.Fatalf("chunk %+v: expected offset %d", c, end)
				}
				end = c.Index.End()
			}
		}
	})
}

// partBeforeChecksums is the first encoding of Part.
type partBeforeChecksums struct {
	First        int
	Paths        []string
	Bytes        []int64
	ModTimes     []int64
	Layouts      []byte
	Counts       []int
	Sizes        []byte
	Records      []byte
	Compressions []byte
}

// partBeforeETags is the second encoding of Part.
type partBeforeETags struct {
	First        int
	Paths        []string
	Bytes        []int64
	ModTimes     []int64
	Layouts      []byte
	Counts       []int
	Sizes        []byte
	Records      []byte
	Compressions []byte
	Checksums    []byte
}

func beforeETags(p Part) partBeforeETags {
	return partBeforeETags{p.First, p.Paths, p.Bytes, p.ModTimes, p.Layouts, p.Counts, p.Sizes, p.Records, p.Compressions, p.Checksums}
}
