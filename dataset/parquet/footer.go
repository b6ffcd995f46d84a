package parquet

import (
	"fmt"
	"hash/crc32"
	"math"

	"trainmaster/recordio"
)

// Group is a row group of a file.
type Group struct {
	Offset, Size int64 // its stored bytes: from the first byte of its first column to the last byte of its last column
	Rows         int64
}

// Footer is the index of a file.
type Footer struct {
	Groups []Group
	Rows   int64 // of all groups
	// Checksum is the CRC-32C of the footer, with its length and the magic number. Two files with the same checksum have the same schema, and
	// the same sizes, positions and statistics of all columns.
	Checksum uint32
}

// MaxFooterBytes is the maximum size of a footer.
const MaxFooterBytes = 64 << 20

const (
	magicSize   = 4
	trailerSize = 8 // length of the footer and the magic number
	magic       = "PAR1"
	encrypted   = "PARE"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// parseFooter reads the footer of a file of size bytes. data has the footer and the trailer. The numbers of fields are defined by
// https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift.
func parseFooter(data []byte, size int64) (*Footer, error) {
	f := &Footer{Checksum: crc32.Checksum(data, castagnoli)}
	d := &decoder{data: data[:len(data)-trailerSize]}
	bounds := size - int64(len(data))
	rows := int64(-1)
	d.structure(func(id int64, kind byte) {
		switch id {
		case 3: // num_rows
			rows = d.number(kind)
		case 4: // row_groups
			d.structures(kind, func() { f.addGroup(d, bounds) })
		default:
			d.skip(kind)
		}
	})
	switch {
	case d.err != nil:
		return nil, d.err
	case rows != f.Rows:
		return nil, fmt.Errorf("%w: footer: expected the rows of all groups, %d, as the rows of the file, found %d", recordio.ErrMalformed, f.Rows, rows)
	}
	return f, nil
}

// addGroup reads a RowGroup, which must be before bounds in the file.
func (f *Footer) addGroup(d *decoder, bounds int64) {
	g := Group{Rows: -1}
	first, end := int64(math.MaxInt64), int64(0)
	d.structure(func(id int64, kind byte) {
		switch id {
		case 1: // columns
			d.structures(kind, func() {
				from, to := columnBytes(d)
				first, end = min(first, from), max(end, to)
			})
		case 3: // num_rows
			g.Rows = d.number(kind)
		default:
			d.skip(kind)
		}
	})
	g.Offset, g.Size = first, end-first
	number := len(f.Groups)
	switch {
	case d.err != nil:
		return
	case g.Rows < 0 || g.Rows > math.MaxUint32:
		d.fail("row group %d: expected 0 to %d rows, found %d", number, uint32(math.MaxUint32), g.Rows)
	case end == 0:
		d.fail("row group %d: expected columns, found none", number)
	//guard:parquet-group-within-file
	case first < magicSize || end > bounds:
		d.fail("row group %d: expected its columns at bytes %d to %d, found %d to %d", number, magicSize, bounds, first, end)
	case g.Size > math.MaxUint32:
		d.err = fmt.Errorf("%w: row group %d: expected at most 4 GiB, found %d bytes: write smaller row groups", recordio.ErrTooLarge, number, g.Size)
	}
	f.Groups = append(f.Groups, g)
	f.Rows += max(g.Rows, 0)
}

// columnBytes reads a ColumnChunk and returns where its bytes are.
func columnBytes(d *decoder) (from, to int64) {
	dictionary, data, size := int64(0), int64(0), int64(-1)
	known := false
	d.structure(func(id int64, kind byte) {
		switch id {
		case 1: // file_path
			d.skip(kind)
			d.fail("expected all columns in one file, found a column in another file")
		//guard:encrypted-column-refused
		case 8, 9: // crypto_metadata, encrypted_column_metadata
			d.skip(kind)
			d.fail("expected columns without encryption, found an encrypted one")
		case 3: // meta_data
			known = d.expect(kind, typeStruct)
			d.structure(func(id int64, kind byte) {
				switch id {
				case 7: // total_compressed_size
					size = d.number(kind)
				case 9: // data_page_offset
					data = d.number(kind)
				case 11: // dictionary_page_offset
					dictionary = d.number(kind)
				default:
					d.skip(kind)
				}
			})
		default:
			d.skip(kind)
		}
	})
	from = data
	//guard:row-group-without-pages
	if dictionary > 0 && (dictionary < data || data == 0) { // a group without rows may have no data page
		from = dictionary
	}
	switch {
	case d.err != nil:
	case !known:
		d.fail("expected the position of each column, found none: columns with encrypted metadata are not supported")
	case from < magicSize || size < 0 || size > math.MaxInt64-from:
		d.fail("expected a column at byte %d or after, of 0 or more bytes, found byte %d and %d bytes", magicSize, from, size)
	}
	return from, from + size
}
