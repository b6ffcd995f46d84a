package dataset

import (
	"fmt"
	"iter"

	"trainmaster/dataset/parquet"
	"trainmaster/recordio"
)

// rows is the error of reading records of a Parquet file.
func (r *Reader) rows() iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		//guard:parquet-has-no-records
		yield(nil, fmt.Errorf("%s: %w: read its row groups with a Parquet library", recordio.DisplayName(r.Parquet.Name()), parquet.ErrRows))
	}
}

// groups has a chunk for each row group.
func (r *Reader) groups() ([]recordio.Index, error) {
	footer, err := r.Parquet.Footer()
	if err != nil {
		return nil, err
	}
	index := make([]recordio.Index, len(footer.Groups))
	for i, g := range footer.Groups {
		index[i] = recordio.Index{Offset: int64(i), Size: uint32(g.Size), Records: uint32(g.Rows), Layout: recordio.Parquet, Checksum: footer.Checksum}
	}
	return index, nil
}

// RowGroup reads the row group that ix describes. A file with another footer is an error that wraps [recordio.ErrChanged].
func (r *Reader) RowGroup(ix recordio.Index) (*parquet.Part, error) {
	part, err := r.rowGroup(ix)
	if err != nil && r.object.Reread(err) {
		r.Parquet = parquet.NewFile(r.file, r.Parquet.Size(), r.Parquet.Name())
		part, err = r.rowGroup(ix)
	}
	return part, err
}

func (r *Reader) rowGroup(ix recordio.Index) (*parquet.Part, error) {
	if r.Parquet == nil {
		return nil, fmt.Errorf("expected a chunk in the %v layout, found the %v layout", recordio.Parquet, ix.Layout)
	}
	if err := r.Parquet.Check(ix.Offset, ix.Size, ix.Records, ix.Checksum); err != nil {
		return nil, err
	}
	footer, err := r.Parquet.Footer()
	if err != nil {
		return nil, err
	}
	g := footer.Groups[ix.Offset]
	r.expect(g.Offset, g.Size)
	return r.Parquet.Part(int(ix.Offset))
}
