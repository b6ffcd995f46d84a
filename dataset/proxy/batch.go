package proxy

import (
	"context"
	"fmt"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"trainmaster/internal/grpcserver"
	pb "trainmaster/proto/trainmaster/v1"
)

const (
	// aheadBytes is the maximum size of the batches of one reader that wait for the connection, in bytes.
	aheadBytes = grpcserver.MaxMessage
	// aheadUnit is the unit in which a reader reserves these bytes. A batch takes a unit at least.
	aheadUnit = 64 << 10
)

// The bytes before a record in an encoded batch: field 1 of DataBatchResponse, field 1 of Record.
var (
	batchTag = protowire.EncodeTag((&pb.DataBatchResponse{}).ProtoReflect().Descriptor().Fields().ByName("batch").Number(), protowire.BytesType)
	dataTag  = protowire.EncodeTag((&pb.Record{}).ProtoReflect().Descriptor().Fields().ByName("data").Number(), protowire.BytesType)
)

// batch is an encoded DataBatchResponse.
type batch struct {
	data     []byte
	records  int32
	reserved int64
}

// recordSize is the size of an encoded record.
func recordSize(record []byte) int {
	data := protowire.SizeVarint(dataTag) + protowire.SizeBytes(len(record))
	return protowire.SizeVarint(batchTag) + protowire.SizeBytes(data)
}

func (b *batch) add(record []byte) {
	b.data = protowire.AppendVarint(b.data, batchTag)
	b.data = protowire.AppendVarint(b.data, uint64(protowire.SizeVarint(dataTag)+protowire.SizeBytes(len(record))))
	b.data = protowire.AppendVarint(b.data, dataTag)
	b.data = protowire.AppendBytes(b.data, record)
	b.records++
}

// nextRecord returns the first record of an encoded batch and the rest. It returns false after the last record.
func nextRecord(data []byte) (record, rest []byte, ok bool, err error) {
	message, rest, ok, err := nextBytes(data, batchTag)
	if err != nil || !ok {
		return nil, nil, false, err
	}
	record, _, _, err = nextBytes(message, dataTag) // an empty record may have no field
	return record, rest, true, err
}

// nextBytes returns the first field with a tag, and the bytes after it. It passes over other fields.
func nextBytes(data []byte, tag uint64) (value, rest []byte, ok bool, err error) {
	for len(data) > 0 {
		found, n := protowire.ConsumeVarint(data)
		if n < 0 {
			return nil, nil, false, fmt.Errorf("decode a batch: %w", protowire.ParseError(n))
		}
		if found == tag {
			value, m := protowire.ConsumeBytes(data[n:])
			if m < 0 {
				return nil, nil, false, fmt.Errorf("decode a batch: %w", protowire.ParseError(m))
			}
			return value, data[n+m:], true, nil
		}
		number, kind := protowire.DecodeTag(found)
		m := protowire.ConsumeFieldValue(number, kind, data[n:])
		if m < 0 {
			return nil, nil, false, fmt.Errorf("decode a batch: %w", protowire.ParseError(m))
		}
		data = data[n+m:]
	}
	return nil, nil, false, nil
}

// fill reads batches of size records and passes them to out. It waits while the batches that are not released take aheadBytes, with their
// unused capacity. Each batch is checked against the stamps of its files.
func fill(ctx context.Context, r *Reader, size int32, ahead *semaphore.Weighted, out chan<- batch) error {
	var b batch
	last := 0 // capacity that the next batch begins with
	pass := func() error {
		//guard:proxy-batch-checked
		if err := r.Check(); err != nil {
			return err
		}
		select {
		case out <- b:
			//guard:proxy-batch-capacity
			if last = cap(b.data); len(b.data) < last/2 {
				last = len(b.data)
			}
			b = batch{}
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	for record, err := range r.Records(ctx) {
		if err != nil {
			return err
		}
		n := recordSize(record)
		if b.records > 0 && len(b.data)+n > grpcserver.MaxMessage {
			if err := pass(); err != nil {
				return err
			}
		}
		//guard:proxy-ahead-limit
		if need := len(b.data) + n; need > cap(b.data) {
			room := max(need, last, min(2*cap(b.data), aheadBytes))
			reserve := int64(room+aheadUnit-1) / aheadUnit * aheadUnit
			if err := ahead.Acquire(ctx, reserve-b.reserved); err != nil {
				return context.Cause(ctx)
			}
			b.reserved = reserve
			b.data = append(make([]byte, 0, room), b.data...)
		}
		b.add(record)
		if b.records == size {
			if err := pass(); err != nil {
				return err
			}
		}
	}
	if b.records > 0 {
		return pass()
	}
	return nil
}

// codec sends and receives encoded batches without a copy of each record. It passes other messages to the codec of gRPC.
type codec struct{ encoding.CodecV2 }

func newCodec() codec { return codec{encoding.GetCodecV2("proto")} }

// encoded is an encoded DataBatchResponse.
type encoded struct{ data []byte }

func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if b, ok := v.(*encoded); ok {
		return mem.BufferSlice{mem.SliceBuffer(b.data)}, nil
	}
	return c.CodecV2.Marshal(v)
}

func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	b, ok := v.(*encoded)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	if n := data.Len(); cap(b.data) < n {
		b.data = make([]byte, n)
	} else {
		b.data = b.data[:n]
	}
	data.CopyTo(b.data)
	return nil
}
