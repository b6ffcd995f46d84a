package convert_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"trainmaster/dataset/convert"
	"trainmaster/dataset/sample"
	"trainmaster/recordio"
)

const digits = "../../testdata/digits.csv.gz"

func openDigits(t testing.TB) io.Reader {
	t.Helper()
	content, err := os.ReadFile(digits)
	if err != nil {
		t.Fatal(err)
	}
	return bytes.NewReader(content)
}

// key returns a sample as text, to compare sets of samples.
func key(s sample.Sample) string {
	if len(s.Numbers) > 0 {
		return fmt.Sprint(s.Label, s.Scale, s.Numbers)
	}
	return fmt.Sprint(s.Label, s.Scale, s.Pixels)
}

// readShards returns the samples of all shards in order, and the number of records in each shard.
func readShards(t testing.TB, paths []string) (samples []string, counts []int) {
	t.Helper()
	for _, path := range paths {
		f, err := recordio.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for record, err := range f.Records() {
			if err != nil {
				t.Fatal(err)
			}
			var s sample.Sample
			if err := sample.Decode(record, &s); err != nil {
				t.Fatal(err)
			}
			samples = append(samples, key(s))
			n++
		}
		counts = append(counts, n)
		f.Close()
	}
	return samples, counts
}

// writeRecords creates a file of records.
func writeRecords(t testing.TB, path string, records [][]byte) {
	t.Helper()
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	w := recordio.NewWriter(file, recordio.WriterOptions{})
	for _, record := range records {
		if err := w.Write(record); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), file.Close()); err != nil {
		t.Fatal(err)
	}
}

// names lists a directory.
func names(t testing.TB, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}

// TestDigits converts the bundled table and compares every sample with its row.
func TestDigits(t *testing.T) {
	z, err := gzip.NewReader(openDigits(t))
	if err != nil {
		t.Fatal(err)
	}
	table, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for row := range strings.Lines(string(table)) {
		var numbers []byte
		for field := range strings.SplitSeq(strings.TrimSpace(row), ",") {
			var n byte
			if _, err := fmt.Sscan(field, &n); err != nil {
				t.Fatal(err)
			}
			numbers = append(numbers, n)
		}
		want = append(want, key(sample.Sample{Label: int(numbers[64]), Scale: 1.0 / 16, Pixels: numbers[:64]}))
	}

	dir := t.TempDir()
	var progress [2]int
	r, err := convert.CSV(t.Context(), openDigits(t), convert.Options{
		Prefix: filepath.Join(dir, "new", "digits"), Shards: 4, RecordsPerChunk: 64, Compression: recordio.Snappy,
		HeldOut: 0.2, Seed: 1, Progress: func(done, total int) { progress = [2]int{done, total} },
	})
	if err != nil {
		t.Fatal(err)
	}
	if r.Features != 64 || r.Classes != 10 || r.Test.Records != 359 || r.Train.Records != 1438 {
		t.Errorf("result is %+v", r)
	}
	if progress != [2]int{1797, 1797} {
		t.Errorf("the last progress was %v", progress)
	}
	wantNames := []string{"digits-00000-of-00004", "digits-00001-of-00004", "digits-00002-of-00004", "digits-00003-of-00004", "digits-test-00000-of-00001", "digits.dataset.json"}
	if got := names(t, filepath.Join(dir, "new")); !slices.Equal(got, wantNames) {
		t.Errorf("directory: found %q", got)
	}
	train, counts := readShards(t, r.Train.Paths)
	if !slices.Equal(counts, []int{359, 360, 359, 360}) {
		t.Errorf("train shards hold %v records", counts)
	}
	test, counts := readShards(t, r.Test.Paths)
	if !slices.Equal(counts, []int{359}) {
		t.Errorf("test shards hold %v records", counts)
	}
	got := slices.Concat(train, test)
	if slices.Equal(got, want) {
		t.Error("expected shuffled samples")
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Error("expected all samples of the table in train and test")
	}
}

// TestConvertSplitDependsOnSeed converts with equal and different seeds: equal seeds give equal bytes, other seeds another split.
func TestConvertSplitDependsOnSeed(t *testing.T) {
	run := func(seed uint64) (all []byte) {
		dir := t.TempDir()
		r, err := convert.CSV(t.Context(), openDigits(t), convert.Options{Prefix: filepath.Join(dir, "d"), Shards: 3, HeldOut: 0.5, Seed: seed, Compression: recordio.Gzip})
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range append(r.Test.Paths, r.Train.Paths...) {
			content, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, content...)
		}
		return all
	}
	first := run(1)
	if !bytes.Equal(first, run(1)) {
		t.Error("same seed: expected the same shards")
	}
	if bytes.Equal(first, run(2)) {
		t.Error("other seed: expected other shards")
	}
}

// TestHeldOutSamplesAreFixed fixes the held-out samples. Otherwise a later release could test a model on its training
// samples.
func TestHeldOutSamplesAreFixed(t *testing.T) {
	var table strings.Builder
	for i := range 20 {
		fmt.Fprintf(&table, "%d,%d\n", 7, i)
	}
	r, err := convert.CSV(t.Context(), strings.NewReader(table.String()), convert.Options{Prefix: filepath.Join(t.TempDir(), "t"), HeldOut: 0.25, Seed: 42})
	if err != nil {
		t.Fatal(err)
	}
	test, _ := readShards(t, r.Test.Paths)
	var labels []string
	for _, s := range test {
		labels = append(labels, strings.Fields(s)[0])
	}
	if got, want := strings.Join(labels, " "), "9 16 7 15 1"; got != want {
		t.Errorf("held-out labels: found %s, expected %s", got, want)
	}
}

func TestMaxPixel(t *testing.T) {
	for _, c := range []struct {
		max   uint8
		scale string
	}{{0, "0.25"}, {4, "0.25"}, {8, "0.125"}} {
		r, err := convert.CSV(t.Context(), strings.NewReader("1,4,0\n"), convert.Options{Prefix: filepath.Join(t.TempDir(), "t"), MaxPixel: c.max})
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := readShards(t, r.Train.Paths); !slices.Equal(got, []string{"0 " + c.scale + " [1 4]"}) {
			t.Errorf("maximum %d gave %q", c.max, got)
		}
	}
	if _, err := convert.CSV(t.Context(), strings.NewReader("1,4,0\n"), convert.Options{Prefix: filepath.Join(t.TempDir(), "t"), MaxPixel: 3}); err == nil {
		t.Error("maximum below the largest value: expected an error")
	}
}

func TestCSVRefuses(t *testing.T) {
	for name, c := range map[string]struct{ table, words string }{
		"nothing":        {"", "no samples"},
		"heading alone":  {"pixel,label\n", "no samples"},
		"half a heading": {"age,7\n1,2\n", `line 1, column 1: "age" is not a number; if line 1 is a heading, use --header yes`},
		"word":           {"1,2\n1,2\nx,2\n", `line 3, column 1: "x" is not a number`},
		"empty cell":     {"1,2\n,2\n", `line 2, column 1: "" is not a number`},
		"NaN":            {"1,2\nNaN,2\n", `line 2, column 1: "NaN" is not a number`},
		"label is first": {"kind,a\nx,2\n", `line 2, column 1: "x" is not a number: if the column "kind" has the label, use --label`},
		"above float32":  {"1,2\n3.4028236e38,2\n", `expected a number within`},
		"too large":      {"1,2\n1e308,2\n", `line 2, column 1: expected a number within ±3.4e+38, the range of float32, found 1e308`},
		"far too large":  {"1,2\n-1e400,2\n", `line 2, column 1: expected a number within ±3.4e+38, the range of float32, found -1e400`},
		"UTF-16":         {"\xff\xfe1\x00,\x002\x00\n\x00", "expected UTF-8 text, found UTF-16: convert the file first"},
		"UTF-16 BE":      {"\xfe\xff\x001\x00,", "expected UTF-8 text, found UTF-16: convert the file first"},
		"no text":        {"1\x00,\x00", "found a zero byte at its beginning"},
		"infinity":       {"1,2\n-inf,2\n", `line 2, column 1: "-inf" is not a number`},
		"negative label": {"1,255,-1\n", `line 1, column 3: label "-1" is not a whole number`},
		"text label":     {"1,2,setosa\n", "number texts with --text-labels"},
		"ragged":         {"1,2,3\n1,2\n", "line 2: expected 3 fields, as in line 1, found 2"},
		"label only":     {"1\n", "found 1 column"},
		"torn gzip":      {"\x1f\x8b\x08", "cut short"},
	} {
		dir := t.TempDir()
		_, err := convert.CSV(t.Context(), strings.NewReader(c.table), convert.Options{Prefix: filepath.Join(dir, "t")})
		if err == nil || !strings.Contains(err.Error(), c.words) {
			t.Errorf("%s: found error %v", name, err)
		}
		if left := names(t, dir); len(left) > 0 {
			t.Errorf("%s: expected no files, found %q", name, left)
		}
	}
}

// The largest float32 as other programs print it, and labels as floating-point columns have them.
func TestNumbersOfOtherPrograms(t *testing.T) {
	r, err := convert.CSV(t.Context(), strings.NewReader("3.4028235e38,1.0\n-3.4028235e38,0.0\n2,2e0\n"), convert.Options{Prefix: filepath.Join(t.TempDir(), "t")})
	if err != nil || r.Classes != 3 {
		t.Errorf("expected 3 classes, found %+v, %v", r, err)
	}
}

func TestOptionsAreChecked(t *testing.T) {
	dir := t.TempDir()
	for _, o := range []convert.Options{
		{}, {Prefix: dir + "/"}, {Prefix: ".."}, {Prefix: filepath.Join(dir, "t"), Shards: -1}, {Prefix: filepath.Join(dir, "t"), Shards: 100_000},
		{Prefix: filepath.Join(dir, "t"), HeldOut: 1}, {Prefix: filepath.Join(dir, "t"), HeldOut: -0.1},
		{Prefix: filepath.Join(dir, "t"), HeldOut: 0.1}, {Prefix: filepath.Join(dir, "t"), Shards: 4},
		{Prefix: filepath.Join(dir, "t"), Compression: 9},
	} {
		if _, err := convert.CSV(t.Context(), strings.NewReader("1,0\n2,0\n3,0\n"), o); err == nil {
			t.Errorf("%+v: expected an error", o)
		}
	}
	if left := names(t, dir); len(left) > 0 {
		t.Errorf("expected no files, found %q", left)
	}
}

func TestEarlierShards(t *testing.T) {
	dir := t.TempDir()
	run := func(shards int) error {
		_, err := convert.CSV(t.Context(), openDigits(t), convert.Options{Prefix: filepath.Join(dir, "d"), Shards: shards, HeldOut: 0.2})
		return err
	}
	for range 2 { // the second conversion replaces the first
		if err := run(2); err != nil {
			t.Fatal(err)
		}
	}
	if err := run(3); err == nil || !strings.Contains(err.Error(), "d-00000-of-00002") {
		t.Errorf("other number of shards: found error %v", err)
	}
	if want := []string{"d-00000-of-00002", "d-00001-of-00002", "d-test-00000-of-00001", "d.dataset.json"}; !slices.Equal(names(t, dir), want) {
		t.Errorf("directory: found %q", names(t, dir))
	}
}

func TestCancelLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	_, err := convert.CSV(ctx, openDigits(t), convert.Options{Prefix: filepath.Join(dir, "d"), Shards: 4, HeldOut: 0.2, Progress: func(done, _ int) {
		if done == 1000 {
			if len(names(t, dir)) == 0 {
				t.Error("expected an unfinished shard")
			}
			cancel()
		}
	}})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("found error %v", err)
	}
	if left := names(t, dir); len(left) > 0 {
		t.Errorf("expected no files, found %q", left)
	}
}

// idx returns a file in the format of MNIST.
func idx(content []byte, shape ...uint32) []byte {
	b := []byte{0, 0, 8, byte(len(shape))}
	for _, dimension := range shape {
		b = binary.BigEndian.AppendUint32(b, dimension)
	}
	return append(b, content...)
}

func gzipped(t testing.TB, content []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := z.Write(content); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestIDX(t *testing.T) {
	images := idx([]byte{0, 1, 2, 3, 4, 5, 250, 251, 252, 253, 254, 255}, 2, 3, 2)
	labels := idx([]byte{9, 4}, 2)
	for name, pair := range map[string][2][]byte{
		"plain":   {images, labels},
		"gzipped": {gzipped(t, images), gzipped(t, labels)},
	} {
		r, err := convert.IDX(t.Context(), bytes.NewReader(pair[0]), bytes.NewReader(pair[1]), convert.Options{Prefix: filepath.Join(t.TempDir(), "m")})
		if err != nil {
			t.Fatal(err)
		}
		got, _ := readShards(t, r.Train.Paths)
		slices.Sort(got)
		want := []string{
			key(sample.Sample{Label: 4, Scale: 1.0 / 255, Pixels: []byte{250, 251, 252, 253, 254, 255}}),
			key(sample.Sample{Label: 9, Scale: 1.0 / 255, Pixels: []byte{0, 1, 2, 3, 4, 5}}),
		}
		if !slices.Equal(got, want) || r.Features != 6 || r.Classes != 10 || len(r.Test.Paths) != 0 {
			t.Errorf("%s: %q, %+v", name, got, r)
		}
	}
}

func TestIDXRefuses(t *testing.T) {
	images, labels := idx(make([]byte, 12), 2, 3, 2), idx([]byte{9, 4}, 2)
	for name, c := range map[string]struct {
		images, labels []byte
		words          string
	}{
		"empty":            {nil, labels, "header"},
		"text":             {[]byte("1,2,3\n"), labels, "not an idx file"},
		"floats":           {append([]byte{0, 0, 13}, images[3:]...), labels, "not an idx file"},
		"torn dimensions":  {images[:9], labels, "dimensions"},
		"torn content":     {images[:len(images)-1], labels, "11 of 12 bytes"},
		"tail":             {append(bytes.Clone(images), 0), labels, "end of the file"},
		"huge":             {idx(nil, 1<<31, 1<<31, 1<<31), labels, "dimensions"},
		"none":             {idx(nil, 0, 3, 2), labels, "dimensions"},
		"swapped":          {labels, images, "swapped"},
		"different counts": {images, idx([]byte{1, 2, 3}, 3), "2 images with 3 labels"},
	} {
		_, err := convert.IDX(t.Context(), bytes.NewReader(c.images), bytes.NewReader(c.labels), convert.Options{Prefix: filepath.Join(t.TempDir(), "m")})
		if err == nil || !strings.Contains(err.Error(), c.words) {
			t.Errorf("%s: found error %v", name, err)
		}
	}
}

// The flag --records-per-chunk documents 16 to 64 chunks, for any number of samples and shards.
func TestConvertChoosesNumberOfChunks(t *testing.T) {
	for _, tt := range []struct{ n, shards int }{
		{1, 1}, {5, 1}, {16, 1}, {17, 15}, {60, 7}, {70, 1}, {127, 2}, {130, 1}, {500, 33}, {500, 90}, {1023, 13}, {1025, 4}, {1438, 1}, {1797, 1}, {1797, 40}, {2100, 1}, {2100, 63},
	} {
		prefix := filepath.Join(t.TempDir(), "d")
		r, err := convert.CSV(t.Context(), strings.NewReader(strings.Repeat("1,0\n", tt.n)), convert.Options{Prefix: prefix, Shards: tt.shards})
		if err != nil {
			t.Fatal(err)
		}
		if c := r.Train.Chunks; c < min(tt.n, convert.LeastChunks) || c > max(convert.MostChunks, tt.shards) {
			t.Errorf("%+v: found %d chunks, expected %d to %d", tt, c, convert.LeastChunks, convert.MostChunks)
		}
		if d, err := convert.Describe(t.Context(), prefix); err != nil || d.Train.Chunks != r.Train.Chunks || d.Train.Records != tt.n {
			t.Errorf("%+v: found %d chunks of %d records, %v, expected %d chunks", tt, d.Train.Chunks, d.Train.Records, err, r.Train.Chunks)
		}
	}
}

// The number of shards exceeds the limit of open files: each shard is closed before the next begins.
func TestConvertKeepsFewFilesOpen(t *testing.T) {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
			t.Error(err)
		}
	})
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 40, Max: limit.Max}); err != nil {
		t.Fatal(err)
	}
	r, err := convert.CSV(t.Context(), strings.NewReader(strings.Repeat("1,0\n", 100)), convert.Options{Prefix: filepath.Join(t.TempDir(), "d"), Shards: 80, HeldOut: 0.1})
	if err != nil || len(r.Train.Paths) != 80 || len(r.Test.Paths) != 8 {
		t.Errorf("found %d and %d shards, %v, expected 80 and 8", len(r.Train.Paths), len(r.Test.Paths), err)
	}
}
