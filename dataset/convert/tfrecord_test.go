package convert_test

import (
	"bytes"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"trainmaster/dataset/convert"
	"trainmaster/dataset/tfrecord"
	"trainmaster/recordio"
)

// clone returns copies of records.
func clone(t *testing.T, records iter.Seq2[[]byte, error]) (all [][]byte) {
	t.Helper()
	for record, err := range records {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, bytes.Clone(record))
	}
	return all
}

// Shards in TFRecord have the same names, records and order as shards in RecordIO.
func TestShardsInTFRecord(t *testing.T) {
	dir := t.TempDir()
	o := convert.Options{Prefix: filepath.Join(dir, "recordio"), Shards: 2, HeldOut: 0.2, Seed: 3}
	want, err := convert.CSV(t.Context(), openDigits(t), o)
	if err != nil {
		t.Fatal(err)
	}
	o.ShardFormat = convert.ShardTFRecord
	for _, compression := range []recordio.Compression{recordio.None, recordio.Gzip} {
		o.Prefix, o.Compression = filepath.Join(dir, compression.String()), compression
		got, err := convert.CSV(t.Context(), openDigits(t), o)
		if err != nil {
			t.Fatal(err)
		}
		if got.Train.Records != want.Train.Records || got.Train.Chunks != 2 || got.Test.Chunks != 1 {
			t.Errorf("%s: result: got %+v", compression, got)
		}
		for i, path := range slices.Concat(got.Train.Paths, got.Test.Paths) {
			other := slices.Concat(want.Train.Paths, want.Test.Paths)[i]
			if name := strings.Replace(filepath.Base(other), "recordio", compression.String(), 1); filepath.Base(path) != name {
				t.Errorf("found %s, expected the name %s", path, name)
			}
			r, err := recordio.Open(other)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			f, err := tfrecord.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if c, err := f.Compression(); err != nil || c.String() != compression.String() {
				t.Errorf("%s: compression is %s, %v, expected %s", path, c, err, compression)
			}
			if !slices.EqualFunc(clone(t, f.Records()), clone(t, r.Records()), bytes.Equal) {
				t.Errorf("%s: expected the records of %s", path, other)
			}
		}
	}
}

func TestShardsInTFRecordRefuseOptions(t *testing.T) {
	for want, o := range map[string]convert.Options{
		`format of shards "tf": expected recordio or tfrecord`: {ShardFormat: "tf"},
		"compression snappy: expected none or gzip":            {ShardFormat: convert.ShardTFRecord, Compression: recordio.Snappy},
		"size of chunks: expected none":                        {ShardFormat: convert.ShardTFRecord, ChunkBytes: 1},
	} {
		o.Prefix = filepath.Join(t.TempDir(), "t")
		if _, err := convert.CSV(t.Context(), openDigits(t), o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("found %v, expected %q", err, want)
		}
		if left, err := os.ReadDir(filepath.Dir(o.Prefix)); err != nil || len(left) > 0 {
			t.Errorf("files were left: %v, %v", left, err)
		}
	}
}
