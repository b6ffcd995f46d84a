package convert

import (
	"fmt"
	"math"
	"path/filepath"
	"strings"

	"trainmaster/recordio"
)

// maxShards is what five digits in a name can number.
const maxShards = 99_999

// Options say where and how shards are written. Only Prefix is required.
type Options struct {
	Prefix string // of the shards' paths; its folder is made if it is missing

	Shards          int // of the samples to train on; zero means 1
	RecordsPerChunk int // as in recordio.WriterOptions
	ChunkBytes      int // as in recordio.WriterOptions
	Compression     recordio.Compression

	// HeldOut is the part of the samples, from 0 to below 1, that goes to test shards. There are as many of these as this
	// part of Shards, at least one.
	HeldOut float64
	Seed    uint64 // of the permutation

	// MaxPixel is the value of a CSV table that becomes the feature 1; zero means the largest one in the table.
	MaxPixel uint8

	// LabelAbove, if set, makes two classes of the labels of a table of categories: 1 above it, and 0.
	LabelAbove *float64

	// Progress, if set, is called with the number of samples written.
	Progress func(done, total int)
}

func (o Options) validate() error {
	name := filepath.Base(o.Prefix)
	switch {
	case o.Prefix == "" || strings.HasSuffix(o.Prefix, string(filepath.Separator)) || name == "." || name == "..":
		return fmt.Errorf("prefix %q: expected a path that ends in the beginning of a file name, as in data/digits", o.Prefix)
	case o.Shards < 0 || o.Shards > maxShards:
		return fmt.Errorf("%d shards: expected 1 to %d", o.Shards, maxShards)
	case math.IsNaN(o.HeldOut) || o.HeldOut < 0 || o.HeldOut >= 1:
		return fmt.Errorf("held-out part %v: expected 0 or more and less than 1", o.HeldOut)
	}
	return nil
}

func (o Options) writer() recordio.WriterOptions {
	return recordio.WriterOptions{Compression: o.Compression, ChunkBytes: o.ChunkBytes, RecordsPerChunk: o.RecordsPerChunk}
}

// Result says what was written.
type Result struct {
	Train    Split `json:"train"`
	Test     Split `json:"test"`     // empty without a held-out part
	Features int   `json:"features"` // of each sample
	Classes  int   `json:"classes"`  // one more than the largest label
}

// Split is one set of shards.
type Split struct {
	Paths   []string `json:"paths"`
	Records int      `json:"records"`
}
