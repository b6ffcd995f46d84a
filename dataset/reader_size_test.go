package dataset

import (
	"errors"
	"strings"
	"testing"

	"trainmaster/dataset/tfrecord"
	"trainmaster/recordio"
)

// A compressed TFRecord file is one chunk. A size or a number of records that an index cannot have is refused.
func TestTFRecordChunkThatIsTooLarge(t *testing.T) {
	for want, c := range map[string]tfrecord.Chunk{
		"found 4294967296 bytes and 7 records at byte 0": {Size: 1 << 32, Records: 7, Compression: tfrecord.Gzip},
		"found 9 bytes and 4294967296 records":           {Size: 9, Records: 1 << 32, Compression: tfrecord.Gzip},
	} {
		if _, err := indexOf([]tfrecord.Chunk{c}); !errors.Is(err, recordio.ErrTooLarge) || !strings.Contains(err.Error(), want) {
			t.Errorf("found %v, expected %q", err, want)
		}
	}
	if index, err := indexOf([]tfrecord.Chunk{{Size: 1<<32 - 1, Records: 7}}); err != nil || index[0].Size != 1<<32-1 {
		t.Errorf("the largest chunk: found %+v, %v", index, err)
	}
}
