package tfrecord_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"

	"trainmaster/dataset/tfrecord"
)

// A file is indexed, and one of its chunks is read.
func Example() {
	var file bytes.Buffer
	w := tfrecord.NewWriter(&file, tfrecord.None)
	if err := errors.Join(w.Write([]byte("one")), w.Write([]byte("two")), w.Write([]byte("three")), w.Close()); err != nil {
		log.Fatal(err)
	}
	f := tfrecord.NewFile(bytes.NewReader(file.Bytes()), int64(file.Len()), "numbers.tfrecord")
	index, err := f.Index(context.Background(), tfrecord.IndexOptions{RecordsPerChunk: 2})
	if err != nil {
		log.Fatal(err)
	}
	for _, chunk := range index {
		fmt.Printf("%d records at byte %d\n", chunk.Records, chunk.Offset)
	}
	for record, err := range f.Chunk(index[1]) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s\n", record)
	}
	// Output:
	// 2 records at byte 0
	// 1 records at byte 38
	// three
}
