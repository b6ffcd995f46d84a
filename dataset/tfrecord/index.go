package tfrecord

import (
	"context"
	"fmt"
	"io"
	"math"

	"trainmaster/recordio"
)

// Chunk is one entry of a file's index: a run of whole records, which a reader opens without the records before it. It is meant to
// be stored and sent, so its fields are exported and new fields are only added.
type Chunk struct {
	// Offset and Size are the bytes of the chunk in the file, with lengths and checksums. A compressed file has one chunk with all its
	// bytes.
	Offset, Size int64
	// First is the number of the first record in the file, from 0, or UnknownFirst. Records is at least 1.
	First, Records int64
	// Compression is the compression of the file.
	Compression Compression
	// Checksum is the CRC-32C of the stored checksums of all records.
	Checksum uint32
}

// UnknownFirst is the First of a chunk whose records have no known number. Errors then have no record number.
const UnknownFirst = math.MinInt64

// IndexOptions set the size of chunks. The zero value means chunks of recordio.DefaultChunkBytes.
type IndexOptions struct {
	// ChunkBytes ends a chunk before its Size grows past it; a larger record gets a chunk of its own. Zero means
	// recordio.DefaultChunkBytes, or no limit if RecordsPerChunk is set.
	ChunkBytes int64
	// RecordsPerChunk ends a chunk at that many records. Zero means no limit.
	RecordsPerChunk int64
}

func (o *IndexOptions) validate() error {
	if o.ChunkBytes < 0 || o.RecordsPerChunk < 0 {
		return fmt.Errorf("index options: expected ChunkBytes and RecordsPerChunk of 0 or more, found %d and %d", o.ChunkBytes, o.RecordsPerChunk)
	}
	if o.ChunkBytes == 0 && o.RecordsPerChunk == 0 {
		o.ChunkBytes = recordio.DefaultChunkBytes
	}
	return nil
}

// full reports whether c must end before a record that takes size bytes.
func (o *IndexOptions) full(c *Chunk, size int64) bool {
	return c.Records > 0 && (o.ChunkBytes > 0 && c.Size+size > o.ChunkBytes || o.RecordsPerChunk > 0 && c.Records == o.RecordsPerChunk)
}

// indexAgain is what a user can do about a changed file.
const indexAgain = "index the file again"

// untilDone reads until its context ends. A record of a compressed file can have more data than is decompressed in a second.
type untilDone struct {
	ctx context.Context
	in  io.Reader
}

func (u untilDone) Read(p []byte) (int, error) {
	//guard:index-ends-with-its-context
	if u.ctx.Err() != nil {
		return 0, context.Cause(u.ctx)
	}
	return u.in.Read(p)
}

// Index reads the file once and lists its chunks. It verifies the checksums of all lengths and that the last record is whole, but
// not the checksums of data. A file without records has no chunks. After an error there is no index. It ends with ctx.
func (f *File) Index(ctx context.Context, o IndexOptions) ([]Chunk, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	c, err := f.Compression()
	if err != nil {
		return nil, err
	}
	if c != None {
		o = IndexOptions{} // one chunk
	}
	s, err := f.scan()
	if err != nil {
		return nil, err
	}
	defer s.release()
	s.in = untilDone{ctx, s.in}
	var index []Chunk
	chunk := Chunk{Compression: c}
	for {
		err := s.skip()
		if err == io.EOF { //nolint:errorlint // only the bare io.EOF is the end of the data
			break
		}
		if err != nil {
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			return nil, s.at(f, err)
		}
		size := s.offset - s.start
		if o.full(&chunk, size) {
			index = append(index, chunk)
			chunk = Chunk{Offset: s.start, First: s.number - 1}
		}
		chunk.Size += size
		chunk.Records++
		chunk.Checksum = s.addTo(chunk.Checksum)
	}
	if chunk.Records == 0 {
		return nil, nil
	}
	if c != None {
		chunk.Size = f.size
	}
	return append(index, chunk), nil
}
