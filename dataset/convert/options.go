package convert

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"trainmaster/dataset/sample"
	"trainmaster/recordio"
)

// maxShards is what five digits in a name can number.
const maxShards = 99_999

// Options say where and how shards are written. Only Prefix is required.
type Options struct {
	Prefix string // of the shards' paths; its directory is made if it is missing

	Shards          int // of the samples to train on; zero means 1
	RecordsPerChunk int // as in recordio.WriterOptions; if this and ChunkBytes are zero, chosen so that a small dataset has enough tasks
	ChunkBytes      int // as in recordio.WriterOptions
	Compression     recordio.Compression

	// ShardFormat is ShardRecordIO (the default) or ShardTFRecord. Shards in TFRecord are compressed as a whole, not by Snappy, and
	// RecordsPerChunk and ChunkBytes must be zero. Describe, the master and trainers do not read them.
	ShardFormat string

	// HeldOut is the part of the samples, from 0 to below 1, that goes to test shards. There are as many of these as this
	// part of Shards, at least one.
	HeldOut float64
	Seed    uint64 // of the permutation

	// MaxPixel is the value of a CSV table that becomes the feature 1; 0: the largest value of the table.
	MaxPixel uint8

	// LabelAbove, if set, makes two classes of the labels of a table: 1 above it, and 0.
	LabelAbove *float64

	Heading    string // of a table: HeadingAuto (the default), HeadingYes or HeadingNo
	Label      string // column of a table with the label: its number, from 1, or its name in the heading; "": the last column
	TextLabels bool   // number the labels of a table in the order of their texts
	Scaling    string // of a table of numbers: ScalingStandard (the default) or ScalingNone

	// Like is the prefix of an earlier conversion. The new dataset has its labels and scaling, so that a model of one can be evaluated on
	// the other. Other options of labels and scaling must not be set, but LabelAbove if the description lacks it. A table of other
	// features or labels is an error.
	Like string
	like *Result

	lines bool // the input must be JSON lines

	// Repeat keeps files that have the content to write already, for a conversion that several processes may run. A file with
	// other content is an error.
	Repeat bool

	// Progress, if set, is called with the number of samples written.
	Progress func(done, total int)
}

func (o *Options) validate() error {
	if err := o.takeLike(); err != nil {
		return err
	}

	name := filepath.Base(o.Prefix)
	switch {
	case o.Prefix == "" || strings.HasSuffix(o.Prefix, string(filepath.Separator)) || name == "." || name == "..":
		return fmt.Errorf("prefix %q: expected a path that ends in the beginning of a file name, as in data/digits", o.Prefix)
	case o.Shards < 0 || o.Shards > maxShards:
		return fmt.Errorf("%d shards: expected 1 to %d", o.Shards, maxShards)
	case !slices.Contains([]string{"", ShardRecordIO, ShardTFRecord}, o.ShardFormat):
		return fmt.Errorf("format of shards %q: expected %s or %s", o.ShardFormat, ShardRecordIO, ShardTFRecord)
	case o.ShardFormat == ShardTFRecord && o.Compression != recordio.None && o.Compression != recordio.Gzip:
		return fmt.Errorf("compression %s: expected none or gzip of shards in TFRecord", o.Compression)
	case o.ShardFormat == ShardTFRecord && (o.RecordsPerChunk != 0 || o.ChunkBytes != 0):
		return errors.New("size of chunks: expected none for shards in TFRecord, whose chunks are made by an index")
	case !slices.Contains([]string{"", HeadingAuto, HeadingYes, HeadingNo}, o.Heading):
		return fmt.Errorf("heading %q: expected %s, %s or %s", o.Heading, HeadingAuto, HeadingYes, HeadingNo)
	case o.Scaling != "" && o.Scaling != ScalingStandard && o.Scaling != ScalingNone:
		return fmt.Errorf("scaling %q: expected %s or %s", o.Scaling, ScalingStandard, ScalingNone)
	case o.Like != "" && filepath.Clean(o.Like) == filepath.Clean(o.Prefix):
		return fmt.Errorf("like %s: expected another dataset than that to write", o.Like)
	case o.TextLabels && o.LabelAbove != nil:
		return fmt.Errorf("labels above %v: expected numbers, found that labels are texts", *o.LabelAbove)
	case math.IsNaN(o.HeldOut) || o.HeldOut < 0 || o.HeldOut >= 1:
		return fmt.Errorf("held-out part %v: expected 0 or more and less than 1", o.HeldOut)
	}
	return nil
}

// The values of Options.ShardFormat.
const (
	ShardRecordIO = "recordio"
	ShardTFRecord = "tfrecord"
)

// The values of Options.Scaling.
const (
	ScalingStandard = "standard" // mean 0 and deviation 1, over the samples to train on
	ScalingNone     = "none"
)

// A dataset has at most MostChunks chunks, or one for each shard if there are more shards: enough for 16 trainers with four tasks each.
// It has at least LeastChunks, enough for four trainers, if it has as many samples. Within these limits, a chunk has at least
// minRecords, one small mini-batch.
const (
	MostChunks  = 64
	LeastChunks = 16
	minRecords  = 8
)

// writer says how n samples are cut into the chunks of a number of shards.
func (o Options) writer(n, shards int) recordio.WriterOptions {
	w := recordio.WriterOptions{Compression: o.Compression, ChunkBytes: o.ChunkBytes, RecordsPerChunk: o.RecordsPerChunk}
	if w.ChunkBytes == 0 && w.RecordsPerChunk == 0 {
		chunks, largest := max(1, MostChunks/shards), ceiling(n, shards) // of a shard
		w.ChunkBytes, w.RecordsPerChunk = recordio.DefaultChunkBytes, max(ceiling(largest, chunks), min(minRecords, n/LeastChunks))
	}
	return w
}

func ceiling(n, divisor int) int { return (n + divisor - 1) / divisor }

// Result describes a converted dataset.
type Result struct {
	Train Split `json:"train"`
	Test  Split `json:"test"` // empty without a held-out part

	Kind     sample.Kind `json:"kind"`
	Features int         `json:"features"` // of each sample
	Classes  int         `json:"classes"`  // labels are 0 to Classes-1
	Scale    float32     `json:"scale"`    // of pixels, the feature of the value 1; else 1
	origin
}

// origin is the part of a description about the source. Records do not have it.
type origin struct {
	Columns     []string  `json:"columns,omitempty"`      // names of the features, from the heading
	LabelColumn string    `json:"label_column,omitempty"` // from the heading
	Labels      []string  `json:"labels,omitempty"`       // text of each label, with Options.TextLabels
	LabelAbove  *float64  `json:"label_above,omitempty"`  // Options.LabelAbove
	Means       []float64 `json:"means,omitempty"`        // subtracted from each feature, before the division by its deviation
	Deviations  []float64 `json:"deviations,omitempty"`
}

func (o origin) result(kind sample.Kind, features int, labels []int) Result {
	r := Result{Kind: kind, Features: features, Scale: 1, origin: o}
	for _, label := range labels {
		r.Classes = max(r.Classes, label+1)
	}
	return r
}

// Split is one set of shards.
type Split struct {
	Paths   []string `json:"paths"`
	Records int      `json:"records"`
	Chunks  int      `json:"chunks"`
}
