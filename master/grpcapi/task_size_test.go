package grpcapi

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"trainmaster/internal/grpcserver"
	"trainmaster/recordio"
	"trainmaster/taskqueue"
	"trainmaster/taskqueue/onwire"
)

// The largest task of small objects, each with an ETag, fits a message.
func TestLargestTaskFitsAMessage(t *testing.T) {
	const objects = 60_000
	table := taskqueue.NewTable(objects)
	for i := range objects {
		f := taskqueue.File{Path: fmt.Sprintf("s3://b/%05d", i), Size: 3 << 20, ModTime: 1_795_611_909_123_456_789, ETag: `"` + strings.Repeat("a", 32) + `"`}
		if err := table.Add(f, []recordio.Index{{Size: 3<<20 - recordio.HeaderSize, Records: 1000, Layout: recordio.Second, Checksum: 0xfeedbeef, Compression: recordio.Snappy}}); err != nil {
			t.Fatal(err)
		}
	}
	n, _ := table.GroupWithin(objects, taskqueue.MaxTaskBytes)
	if size := proto.Size(onwire.Files(table.TaskRanges(0), table.TaskChunks(0))); size > grpcserver.MaxMessage-64<<10 {
		t.Errorf("%d objects in a task: expected at most %d bytes, found %d", n, grpcserver.MaxMessage-64<<10, size)
	}
}
