package recordio

import "fmt"

// Index is one entry of a file's chunk index: it is enough to open that chunk without scanning the file. It travels over RPC
// and is stored, so that its fields are exported and only ever added to.
type Index struct {
	Offset      int64  // of the chunk's header in the file
	Size        uint32 // of the payload as stored, after the bytes of the header
	Records     uint32
	Compression Compression
	Layout      Layout
	// Checksum is the checksum in the header, of the payload as stored; 0: not known, since the index was made by an earlier release. A
	// chunk of a TFRecord file has the checksum of the stored checksums of all records, and a row group of a Parquet file the checksum of
	// the footer.
	Checksum uint32
}

// End is the offset of the first byte after the chunk, the number of the record after a chunk of a [Range], or of the next row group.
func (ix Index) End() int64 { return ix.Offset + ix.Layout.Extent(ix.Size, ix.Records) }

func (h header) index(offset int64, l Layout) Index {
	return Index{Offset: offset, Size: h.size, Records: h.records, Compression: h.compression, Layout: l, Checksum: h.checksum}
}

func (ix Index) summary() string {
	return fmt.Sprintf("%d records in %d bytes, %s, %s layout, checksum %#08x", ix.Records, ix.Size, ix.Compression, ix.Layout, ix.Checksum)
}
