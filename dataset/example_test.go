package dataset_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"trainmaster/dataset"
	"trainmaster/recordio"
)

// exampleDir returns a directory with two files of three records each.
func exampleDir() string {
	dir, err := os.MkdirTemp("", "dataset")
	if err != nil {
		log.Fatal(err)
	}
	for _, name := range []string{"train-0", "train-1"} {
		f, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			log.Fatal(err)
		}
		w := recordio.NewWriter(f, recordio.WriterOptions{RecordsPerChunk: 2})
		for _, word := range []string{"one", "two", "three"} {
			if err := w.Write([]byte(word)); err != nil {
				log.Fatal(err)
			}
		}
		if err := errors.Join(w.Close(), f.Close()); err != nil {
			log.Fatal(err)
		}
	}
	return dir
}

// A glob is expanded to a listing, and the chunks of its files are read.
func Example() {
	ctx := context.Background()
	dir := exampleDir()
	defer os.RemoveAll(dir)

	source := dataset.Source{Roots: []string{dir}} // files elsewhere are refused
	listing, err := source.List(ctx, []string{filepath.Join(dir, "train-*")})
	if err != nil {
		log.Print(err)
		return
	}
	var indexer dataset.Indexer
	chunks, err := indexer.Index(ctx, listing)
	if err != nil {
		log.Print(err)
		return
	}
	for i, file := range listing.Files {
		for _, chunk := range chunks[i] {
			fmt.Printf("%s: %d records at byte %d\n", filepath.Base(file.Path), chunk.Records, chunk.Offset)
		}
	}
	// Output:
	// train-0: 2 records at byte 0
	// train-0: 1 records at byte 34
	// train-1: 2 records at byte 0
	// train-1: 1 records at byte 34
}

// A file that was written again is no longer the listed file.
func ExampleCheck() {
	dir := exampleDir()
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "train-0")

	listing, err := dataset.Source{}.List(context.Background(), []string{path})
	if err != nil {
		log.Print(err)
		return
	}
	stamp := listing.Files[0].Stamp()
	fmt.Println(dataset.Check(path, stamp))
	if err := os.Truncate(path, 10); err != nil {
		log.Print(err)
		return
	}
	fmt.Println(errors.Is(dataset.Check(path, stamp), dataset.ErrReplaced))
	// Output:
	// <nil>
	// true
}

// Difference describes how the second list differs from the first.
func ExampleDifference() {
	have := []dataset.Entry{{Path: "/data/part-0", Size: 100}, {Path: "/data/part-1", Size: 100}}
	want := []dataset.Entry{{Path: "/data/part-1", Size: 120}, {Path: "/data/part-2", Size: 100}}
	fmt.Println(dataset.Difference(have, want))
	// Output: the job's dataset has 2 files, this one has 2; 1 missing: /data/part-0; 1 added: /data/part-2; 1 of another size: /data/part-1 (120 bytes, not 100)
}
