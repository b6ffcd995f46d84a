package parquet_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"

	library "github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/compress/zstd"

	"trainmaster/dataset/parquet"
	"trainmaster/recordio"
	"trainmaster/scripts/prepared"
)

type row struct {
	ID    int64    `parquet:"id,delta"`
	Name  string   `parquet:"name,dict,optional"`
	Score float64  `parquet:"score"`
	Tags  []string `parquet:"tags,list"`
	Flag  bool     `parquet:"flag"`
}

func rows(first, n int) []row {
	list := make([]row, n)
	for i := range list {
		id := first + i
		list[i] = row{ID: int64(id), Name: fmt.Sprintf("name-%d", id%7), Score: float64(id) / 3, Flag: id%2 == 0}
		for t := range id % 3 {
			list[i].Tags = append(list[i].Tags, fmt.Sprint(t))
		}
	}
	return list
}

// write returns a file with row groups of these sizes.
func write(t testing.TB, groups []int, options ...library.WriterOption) []byte {
	t.Helper()
	var out bytes.Buffer
	w := library.NewGenericWriter[row](&out, options...)
	first := 0
	for _, n := range groups {
		if _, err := w.Write(rows(first, n)); err != nil {
			t.Fatal(err)
		}
		if err := w.Flush(); err != nil {
			t.Fatal(err)
		}
		first += n
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func open(data []byte) *parquet.File {
	return parquet.NewFile(bytes.NewReader(data), int64(len(data)), "a.parquet")
}

// bloom makes the writer put bloom filters behind the columns.
var bloom = library.BloomFilters(library.SplitBlockFilter(10, "id"))

// The library reads the rows of each group of a file from the memory of a part.
func TestLibraryReadsParts(t *testing.T) {
	groups := []int{10, 1, 300, 25}
	for name, options := range map[string][]library.WriterOption{
		"plain": nil, "compressed": {library.Compression(&zstd.Codec{})}, "bloom filters": {bloom}, "small pages": {library.PageBufferSize(64)},
	} {
		data := write(t, groups, options...)
		file := &counted{ReaderAt: bytes.NewReader(data)}
		f := parquet.NewFile(file, int64(len(data)), "a.parquet")
		footer, err := f.Footer()
		if err != nil {
			t.Fatal(name, err)
		}
		if len(footer.Groups) != len(groups) || footer.Rows != 336 {
			t.Fatalf("%s: found %d row groups with %d rows, expected %d with 336", name, len(footer.Groups), footer.Rows, len(groups))
		}
		first := 0
		for i, n := range groups {
			file.reads = 0
			part, err := f.Part(i)
			if err != nil {
				t.Fatal(name, err)
			}
			opened, err := library.OpenFile(part, part.Size(), library.SkipPageIndex(true), library.SkipBloomFilters(true))
			if err != nil {
				t.Fatal(name, err)
			}
			group := opened.RowGroups()[part.Number]
			got := make([]row, n+1)
			r := library.NewGenericRowGroupReader[row](group)
			count, err := r.Read(got)
			if count != n || err != nil && !errors.Is(err, io.EOF) {
				t.Fatalf("%s: group %d: read %d rows, %v, expected %d", name, i, count, err, n)
			}
			for k, want := range rows(first, n) {
				if len(got[k].Tags) == 0 {
					got[k].Tags = nil
				}
				if !reflect.DeepEqual(got[k], want) {
					t.Fatalf("%s: group %d, row %d: found %+v, expected %+v", name, i, k, got[k], want)
				}
			}
			if file.reads != 1 {
				t.Errorf("%s: group %d: %d reads of the file, expected 1", name, i, file.reads)
			}
			first += n
		}
	}
}

type counted struct {
	io.ReaderAt
	reads int
}

func (c *counted) ReadAt(p []byte, off int64) (int, error) {
	c.reads++
	return c.ReaderAt.ReadAt(p, off)
}

// The index has the positions that the library finds.
func TestFooterAgreesWithTheLibrary(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 20 {
		groups := make([]int, 1+r.IntN(40))
		for i := range groups {
			groups[i] = 1 + r.IntN(50)
		}
		data := write(t, groups, bloom)
		f, err := open(data).Footer()
		if err != nil {
			t.Fatal(err)
		}
		opened, err := library.OpenFile(bytes.NewReader(data), int64(len(data)))
		if err != nil {
			t.Fatal(err)
		}
		var want []parquet.Group
		for _, g := range opened.Metadata().RowGroups {
			first, end := int64(len(data)), int64(0)
			for _, c := range g.Columns {
				from := c.MetaData.DataPageOffset
				if d := c.MetaData.DictionaryPageOffset; d > 0 {
					from = min(from, d)
				}
				first, end = min(first, from), max(end, from+c.MetaData.TotalCompressedSize)
			}
			want = append(want, parquet.Group{Offset: first, Size: end - first, Rows: g.NumRows})
		}
		if !slices.Equal(f.Groups, want) {
			t.Fatalf("found %v, expected %v", f.Groups, want)
		}
	}
}

// A footer that is larger than the first read of the end is read whole.
func TestLargeFooter(t *testing.T) {
	groups := slices.Repeat([]int{1}, 300)
	data := write(t, groups)
	if size := binary.LittleEndian.Uint32(data[len(data)-8:]); size < 64<<10 {
		t.Fatalf("footer of %d bytes, expected more than 64 KiB", size)
	}
	f, err := open(data).Footer()
	if err != nil || len(f.Groups) != 300 {
		t.Fatalf("found %v, %v, expected 300 row groups", f, err)
	}
}

// F235: a damaged footer is an error, or its row groups are inside the file. It takes no memory.
func TestDamagedFooter(t *testing.T) {
	data := write(t, []int{5, 6})
	length := int(binary.LittleEndian.Uint32(data[len(data)-8:])) + 8
	refused := 0
	for at := len(data) - length; at < len(data); at++ {
		for _, flip := range []byte{1, 0x10, 0x80, 0xff} {
			damaged := bytes.Clone(data)
			damaged[at] ^= flip
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			f, err := open(damaged).Footer()
			runtime.ReadMemStats(&after)
			if n := after.TotalAlloc - before.TotalAlloc; n > 1<<20 {
				t.Fatalf("byte %d ^ %#x: %d bytes were allocated", at, flip, n)
			}
			if err != nil {
				refused++
				requireError(t, err)
				continue
			}
			for _, g := range f.Groups {
				if g.Offset < 4 || g.Size < 0 || g.Offset+g.Size > int64(len(data)) {
					t.Fatalf("byte %d ^ %#x: row group %+v outside of the file", at, flip, g)
				}
			}
		}
	}
	if refused == 0 {
		t.Error("no damaged byte was refused")
	}
}

func requireError(t *testing.T, err error) {
	t.Helper()
	where, ok := errors.AsType[*recordio.Error](err)
	if !ok || where.File != "a.parquet" {
		t.Fatalf("found %v, expected the name of the file", err)
	}
	if !slices.ContainsFunc([]error{recordio.ErrMalformed, recordio.ErrTruncated, recordio.ErrTooLarge}, func(cause error) bool { return errors.Is(err, cause) }) {
		t.Fatalf("found %v, expected malformed, truncated or too large", err)
	}
}

// F235: a file that was cut short is an error, wherever it was cut.
func TestTruncatedFile(t *testing.T) {
	data := write(t, []int{5, 6})
	for size := range data {
		_, err := open(data[:size]).Footer()
		if err == nil {
			t.Fatalf("%d of %d bytes: expected an error, found none", size, len(data))
		}
		requireError(t, err)
	}
}

// F235: counts and lengths that the footer does not have take no memory and no time.
func TestWrongCounts(t *testing.T) {
	file := func(footer string, length uint32) []byte {
		out, err := hex.DecodeString("50415231" + footer)
		if err != nil {
			t.Fatal(err)
		}
		out = binary.LittleEndian.AppendUint32(out, length)
		return append(out, "PAR1"...)
	}
	for name, data := range map[string][]byte{
		"many row groups": file("49fcffffffff0700", 8),
		"many bytes":      file("29f3ffffffff0f00", 8),
		"long text":       file("68ffff0300", 5),
		"long texts":      file("2928ffff0300", 6),
		"text above 2^63": file("68ffffffffffffffffff0100", 12),
		"large map":       file("6bffffffff0f3300", 8),
		"nested structs":  file(strings.Repeat("1c", 1000), 1000),
		"unknown type":    file("2e00", 2),
		"long footer":     file("00", 1000),
	} {
		_, err := open(data).Footer()
		if err == nil {
			t.Errorf("%s: expected an error, found none", name)
			continue
		}
		requireError(t, err)
	}
}

func TestErrorsSayWhatToDo(t *testing.T) {
	data := write(t, []int{5})
	encrypted := append(bytes.Clone(data[:len(data)-4]), "PARE"...)
	for _, test := range []struct {
		data []byte
		want string
	}{
		{data[:len(data)-1], `truncated: expected "PAR1" at the end of a Parquet file`},
		{encrypted, "expected a footer that is not encrypted"},
		{slices.Concat([]byte("PAR1"), binary.LittleEndian.AppendUint32(nil, 1<<27), []byte("PAR1")), "expected a footer of at most 67108864 bytes, found 134217736"},
		{data[:5], "expected a Parquet file of at least 12 bytes, found 5"},
	} {
		_, err := open(test.data).Footer()
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("found %v, expected %s", err, test.want)
		}
	}
}

// F236: another file with the same sizes is an error.
func TestCheckFindsAnotherFile(t *testing.T) {
	f := open(write(t, []int{5, 6}))
	footer, err := f.Footer()
	if err != nil {
		t.Fatal(err)
	}
	g := footer.Groups[1]
	if err := f.Check(1, uint32(g.Size), uint32(g.Rows), footer.Checksum); err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{
		"checksum": f.Check(1, uint32(g.Size), uint32(g.Rows), footer.Checksum+1), "size": f.Check(1, uint32(g.Size)+1, uint32(g.Rows), footer.Checksum),
		"rows": f.Check(1, uint32(g.Size), uint32(g.Rows)+1, footer.Checksum), "number": f.Check(2, uint32(g.Size), uint32(g.Rows), footer.Checksum),
	} {
		if !errors.Is(err, recordio.ErrChanged) {
			t.Errorf("another %s: found %v, expected %v", name, err, recordio.ErrChanged)
		}
	}
	other, err := open(write(t, []int{6, 5})).Footer()
	if err != nil || other.Checksum == footer.Checksum {
		t.Errorf("found checksum %#x, %v of another file, expected another one", other.Checksum, err)
	}
}

func FuzzFooter(f *testing.F) {
	f.Add(write(f, []int{3, 4}))
	f.Add(write(f, []int{1}, bloom))
	f.Add([]byte("PAR1\x49\xfc\xff\xff\xff\xff\x07\x00\x08\x00\x00\x00PAR1"))
	f.Fuzz(func(t *testing.T, data []byte) {
		footer, err := open(data).Footer()
		if err != nil {
			return
		}
		for i, g := range footer.Groups {
			if g.Offset < 4 || g.Size < 0 || g.Offset+g.Size > int64(len(data)) || g.Rows < 0 {
				t.Fatalf("row group %d: %+v outside of %d bytes", i, g, len(data))
			}
		}
	})
}

// A file of pyarrow has the row groups that pyarrow reads, and the Go library reads their rows.
func TestFileWrittenByPyarrow(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.parquet")
	out, err := exec.CommandContext(t.Context(), prepared.Python(t), "-c", `
import sys, pyarrow as pa, pyarrow.parquet as pq
table = pa.table({"id": range(1000), "name": [f"name-{i % 7}" for i in range(1000)], "list": [[i] * (i % 3) for i in range(1000)]})
pq.write_table(table, sys.argv[1], row_group_size=300, compression="snappy", write_page_index=True)
f = pq.ParquetFile(sys.argv[1])
for i in range(f.num_row_groups):
    g = f.read_row_group(i)
    print(i, g.num_rows, g.column("id")[0].as_py())
`, path).CombinedOutput()
	if err != nil {
		t.Fatalf("python: %v\n%s", err, out)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	f := open(data)
	footer, err := f.Footer()
	if err != nil {
		t.Fatal(err)
	}
	var found strings.Builder
	for i, g := range footer.Groups {
		part, err := f.Part(i)
		if err != nil {
			t.Fatal(err)
		}
		opened, err := library.OpenFile(part, part.Size(), library.SkipPageIndex(true), library.SkipBloomFilters(true))
		if err != nil {
			t.Fatal(err)
		}
		type id struct {
			ID int64 `parquet:"id"`
		}
		list := make([]id, 1)
		if _, err := library.NewGenericRowGroupReader[id](opened.RowGroups()[i]).Read(list); err != nil && !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		fmt.Fprintln(&found, i, g.Rows, list[0].ID)
	}
	if found.String() != string(out) {
		t.Errorf("found\n%sexpected\n%s", found.String(), out)
	}
}

// written runs code of Python, which writes a file at sys.argv[1], and returns the file.
func written(t *testing.T, code string) *parquet.File {
	t.Helper()
	path := filepath.Join(t.TempDir(), "a.parquet")
	if out, err := exec.CommandContext(t.Context(), prepared.Python(t), "-c", code, path).CombinedOutput(); err != nil {
		t.Fatalf("python: %v\n%s", err, out)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return open(data)
}

// F235: a row group without rows, which pyarrow writes for an empty table, is not taken for damage.
func TestRowGroupWithoutRows(t *testing.T) {
	footer, err := written(t, `
import sys, pyarrow as pa, pyarrow.parquet as pq
table = pa.table({"id": range(10), "name": ["a"] * 10})
with pq.ParquetWriter(sys.argv[1], table.schema) as w:
    for part in (table, table.slice(0, 0), table):
        w.write_table(part)
`).Footer()
	if err != nil {
		t.Fatal(err)
	}
	if footer.Rows != 20 || len(footer.Groups) != 3 || footer.Groups[1].Rows != 0 {
		t.Errorf("expected groups of 10, 0 and 10 rows, found %+v", footer.Groups)
	}
}

// F235: a column that is encrypted is refused, also in a file whose footer is not.
func TestEncryptedColumnIsRefused(t *testing.T) {
	_, err := written(t, `
import base64, sys, pyarrow as pa, pyarrow.parquet as pq, pyarrow.parquet.encryption as pe
class Keys(pe.KmsClient):
    def __init__(self, config):
        super().__init__()
    def wrap_key(self, key, name):
        return base64.b64encode(key)
    def unwrap_key(self, key, name):
        return base64.b64decode(key)
table = pa.table({"id": range(10), "name": ["a"] * 10})
config = pe.EncryptionConfiguration(footer_key="f", column_keys={"c": ["id"]}, plaintext_footer=True)
properties = pe.CryptoFactory(Keys).file_encryption_properties(pe.KmsConnectionConfig(), config)
with pq.ParquetWriter(sys.argv[1], table.schema, encryption_properties=properties) as w:
    w.write_table(table)
`).Footer()
	if err == nil || !strings.Contains(err.Error(), "expected columns without encryption") {
		t.Errorf("expected a refusal, found %v", err)
	}
}
