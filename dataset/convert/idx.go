package convert

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// IDX converts a pair of files in MNIST's format, each plain or gzipped: images of unsigned bytes, and as many labels.
//
// The format: two zero bytes, the type (8: unsigned bytes), the number of dimensions, then the dimensions as big-endian
// u32, then the bytes. The first dimension counts samples; all further ones of the images are flattened.
func IDX(ctx context.Context, images, labels io.Reader, o Options) (Result, error) {
	if err := o.validate(); err != nil {
		return Result{}, err
	}
	pixels, shape, err := readIDX(ctx, images)
	if err != nil {
		return Result{}, fmt.Errorf("read images: %w", err)
	}
	classes, labelShape, err := readIDX(ctx, labels)
	if err != nil {
		return Result{}, fmt.Errorf("read labels: %w", err)
	}
	if len(labelShape) != 1 || len(shape) < 2 {
		return Result{}, fmt.Errorf("images have the dimensions %v and labels %v: expected several and one; are the two swapped?",
			shape, labelShape)
	}
	if shape[0] != labelShape[0] {
		return Result{}, fmt.Errorf("%d images with %d labels: expected as many", shape[0], labelShape[0])
	}
	t := &imageTable{pixels: pixels, labels: make([]int, len(classes)), scale: 1.0 / 255}
	for i, label := range classes {
		t.labels[i] = int(label)
	}
	if len(classes) > 0 {
		t.width = len(pixels) / len(classes)
	}
	return write(ctx, t, o)
}

const (
	idxUnsignedBytes = 8
	idxMaxBytes      = 1 << 36 // what any header may declare; the memory is taken as the bytes come
)

// readIDX reads one file to its end.
func readIDX(ctx context.Context, in io.Reader) (content []byte, shape []int, err error) {
	in, err = decompressed(in)
	if err != nil {
		return nil, nil, err
	}
	var magic [4]byte
	if _, err := io.ReadFull(in, magic[:]); err != nil {
		return nil, nil, fmt.Errorf("its header: %w", err)
	}
	if magic[0] != 0 || magic[1] != 0 || magic[2] != idxUnsignedBytes || magic[3] == 0 {
		return nil, nil, fmt.Errorf("it begins with % x, expected 00 00 %02x and the number of dimensions: not an idx file of unsigned bytes",
			magic, idxUnsignedBytes)
	}
	size := int64(1)
	for range magic[3] {
		var word [4]byte
		if _, err := io.ReadFull(in, word[:]); err != nil {
			return nil, nil, fmt.Errorf("its dimensions: %w", err)
		}
		dimension := int64(binary.BigEndian.Uint32(word[:]))
		shape = append(shape, int(dimension))
		if dimension == 0 || size > idxMaxBytes/dimension {
			return nil, nil, fmt.Errorf("its dimensions are %v and more: expected a content of 1 to %d bytes", shape, int64(idxMaxBytes))
		}
		size *= dimension
	}
	for int64(len(content)) < size {
		if ctx.Err() != nil {
			return nil, nil, context.Cause(ctx)
		}
		step := int(min(size-int64(len(content)), 1<<20))
		content = append(content, make([]byte, step)...)
		if n, err := io.ReadFull(in, content[len(content)-step:]); err != nil {
			return nil, nil, fmt.Errorf("it ends after %d of %d bytes of content: %w", len(content)-step+n, size, err)
		}
	}
	if n, err := io.ReadFull(in, make([]byte, 1)); n > 0 || !errors.Is(err, io.EOF) {
		return nil, nil, fmt.Errorf("after its %d bytes of content: %w", size, errors.Join(err, errTail))
	}
	return content, shape, nil
}

var errTail = errors.New("expected the end of the file")
