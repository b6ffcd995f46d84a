package recordio_test

import (
	"bytes"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"trainmaster/recordio"
)

// A file is written in chunks of two records, then its records are read.
func Example() {
	dir, err := os.MkdirTemp("", "recordio")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "words.rec")

	out, err := os.Create(path)
	if err != nil {
		log.Fatal(err)
	}
	w := recordio.NewWriter(out, recordio.WriterOptions{Compression: recordio.Snappy, RecordsPerChunk: 2})
	for _, word := range []string{"one", "two", "three"} {
		if err := w.Write([]byte(word)); err != nil {
			log.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		log.Fatal(err)
	}
	if err := out.Close(); err != nil {
		log.Fatal(err)
	}

	f, err := recordio.Open(path)
	if err != nil {
		log.Fatal(err)
	}
	defer f.Close()
	for record, err := range f.Records() {
		if err != nil {
			log.Fatal(err) // has the file and the byte
		}
		fmt.Printf("%s\n", record)
	}
	// Output:
	// one
	// two
	// three
}

// An entry of the index is sufficient to read one chunk, later or on another machine.
func ExampleFile_Chunk() {
	var file bytes.Buffer
	w := recordio.NewWriter(&file, recordio.WriterOptions{RecordsPerChunk: 2})
	for _, word := range []string{"one", "two", "three"} {
		if err := w.Write([]byte(word)); err != nil {
			log.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		log.Fatal(err)
	}

	f := recordio.NewFile(bytes.NewReader(file.Bytes()), int64(file.Len()), "words.rec")
	index, err := f.Index()
	if err != nil {
		log.Fatal(err)
	}
	for _, ix := range index {
		fmt.Printf("at byte %d: %d records in %d bytes\n", ix.Offset, ix.Records, ix.Size)
	}
	for record, err := range f.Chunk(index[1]) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s\n", record)
	}
	// Output:
	// at byte 0: 2 records in 14 bytes
	// at byte 34: 1 records in 9 bytes
	// three
}

// A file without its last bytes is truncated. The error names the file and the offset of the chunk.
func ExampleError() {
	var file bytes.Buffer
	w := recordio.NewWriter(&file, recordio.WriterOptions{})
	if err := w.Write([]byte("a record")); err != nil {
		log.Fatal(err)
	}
	if err := w.Close(); err != nil {
		log.Fatal(err)
	}
	cut := file.Bytes()[:file.Len()-3]

	for _, err := range recordio.NewFile(bytes.NewReader(cut), int64(len(cut)), "words.rec").Records() {
		fmt.Println(err)
	}
	// Output: words.rec: byte 0: truncated: the header declares a payload of 12 bytes, the file ends after 9
}
