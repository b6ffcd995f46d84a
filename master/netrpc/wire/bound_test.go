package wire_test

import (
	"bufio"
	"bytes"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"net/rpc"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"

	"trainmaster/master/netrpc/wire"
	"trainmaster/taskqueue"
)

// stream encodes values as a gob stream.
func stream(t testing.TB, values ...any) []byte {
	t.Helper()
	var b bytes.Buffer
	encoder := gob.NewEncoder(&b)
	for _, v := range values {
		if err := encoder.Encode(v); err != nil {
			t.Fatal(err)
		}
	}
	return b.Bytes()
}

func bound(r io.Reader) *wire.Bound { return wire.NewBound(bufio.NewReaderSize(r, 16)) }

// everyMessage returns each message of this package.
func everyMessage() []any {
	trainer, token := wire.Trainer{Ordinal: 7, Incarnation: 1 << 60}, taskqueue.Token{Epoch: 1, Pass: 2, Position: 300, Attempt: 4}
	task := taskqueue.Task{Index: 5, Token: token, Chunks: []taskqueue.Chunk{{Idx: 1, Path: strings.Repeat("/data", 100)}}}
	return []any{
		rpc.Request{ServiceMethod: "RPCServer.GetTask", Seq: 1 << 40}, []string{"/a", "/b"}, task,
		wire.JoinRequest{ID: "a", Address: "b"}, wire.LeaveRequest{Trainer: trainer}, wire.SaveModelRequest{Trainer: trainer},
		wire.NextRequest{Trainer: trainer, Seq: 3, Held: []taskqueue.Token{token}, Finished: []taskqueue.Result{{Token: token, Error: "x"}}},
		wire.TaskFailedRequest{Trainer: trainer, Token: token}, wire.StagedRequest{Trainer: trainer, Version: 4, Records: 5},
		wire.HeartbeatRequest{Trainer: trainer, Moving: []taskqueue.Token{token}, Progress: taskqueue.Progress{Records: 9, Loss: 0.5}},
	}
}

// A stream within the bounds passes unchanged, for any split of its bytes.
func TestBoundPassesMessages(t *testing.T) {
	data := stream(t, everyMessage()...)
	for name, r := range map[string]io.Reader{
		"in one read":  bytes.NewReader(data),
		"byte by byte": iotest.OneByteReader(bytes.NewReader(data)),
		"half by half": iotest.HalfReader(bytes.NewReader(data)),
		"with its end": iotest.DataErrReader(bytes.NewReader(data)),
	} {
		t.Run(name, func(t *testing.T) {
			got, err := io.ReadAll(bound(r))
			if err != nil || !bytes.Equal(got, data) {
				t.Fatalf("%d of %d bytes, %v", len(got), len(data), err)
			}
		})
	}
	decoder := gob.NewDecoder(bound(bytes.NewReader(data)))
	for _, want := range everyMessage() {
		got := reflect.New(reflect.TypeOf(want))
		if err := decoder.DecodeValue(got); err != nil || !reflect.DeepEqual(got.Elem().Interface(), want) {
			t.Fatalf("got %+v, %v; want %+v", got.Elem(), err, want)
		}
	}
}

// Types that contain themselves.
type (
	list  []list
	table map[string]table
	left  struct{ Right []right }
	right struct{ Left map[int]left }
)

// Nested types with many fields are inspected once each.
func TestBoundInspectsTypesOnce(t *testing.T) {
	type a struct{ A, B, C, D, E, F, G, H int }
	type b struct{ A, B, C, D, E, F, G, H a }
	type c struct{ A, B, C, D, E, F, G, H b }
	type d struct{ A, B, C, D, E, F, G, H c }
	type e struct{ A, B, C, D, E, F, G, H [3]d }
	data := stream(t, e{})
	if got, err := io.ReadAll(bound(bytes.NewReader(data))); err != nil || !bytes.Equal(got, data) {
		t.Fatalf("%d of %d bytes, %v", len(got), len(data), err)
	}
}

func TestBoundRefuses(t *testing.T) {
	types := func(n, bytes int) []byte { // type descriptions, each with an id of its own
		var b []byte
		for i := range n {
			message := []byte{0xff, byte(2*(i%128) + 1)} // a negative number in one byte
			message = append(message, make([]byte, bytes)...)
			b = append(b, 0xfe, byte(len(message)>>8), byte(len(message)))
			b = append(b, message...)
		}
		return b
	}
	for name, tt := range map[string]struct {
		data  []byte
		want  error
		words string
	}{
		"longer than short messages":    {stream(t, strings.Repeat("x", wire.MaxShortMessage)), wire.ErrTooLarge, "at most 65536"},
		"four gigabytes":                {[]byte{0xfb, 1, 0, 0, 0, 0}, wire.ErrTooLarge, "4294967296 bytes"},
		"2^64-1":                        {[]byte{0xf8, 255, 255, 255, 255, 255, 255, 255, 255}, wire.ErrTooLarge, "18446744073709551615 bytes"},
		"a length of 127 bytes":         {[]byte{0x81, 1, 2, 3}, wire.ErrTooLarge, "a length of 127 bytes"},
		"a length of nine bytes":        {[]byte{0xf7, 1, 2, 3}, wire.ErrTooLarge, "a length of 9 bytes"},
		"more types than there are":     {types(200, 8), wire.ErrTooLarge, "type 129 of this connection"},
		"a type of many fields":         {types(1, 5000), wire.ErrTooLarge, "type 1 of this connection in 5000 bytes"},
		"ends in a message":             {stream(t, "hello")[:5], io.ErrUnexpectedEOF, "ended after"},
		"ends in a length":              {[]byte{0xfe, 1}, io.ErrUnexpectedEOF, ""},
		"a number that is cut":          {[]byte{1, 0x81}, wire.ErrMalformed, "it ends too early"},
		"a value of no type":            {[]byte{3, 0xff, 200, 0}, wire.ErrMalformed, "type 100 was not described"},
		"a type twice":                  {append(types(1, 8), types(1, 8)...), wire.ErrMalformed, "described twice"},
		"a list of itself":              {stream(t, list{list{}}), wire.ErrRecursive, ""},
		"a map of itself":               {stream(t, table{"a": table{}}), wire.ErrRecursive, ""},
		"two that hold each other":      {stream(t, left{Right: []right{{}}}), wire.ErrRecursive, ""},
		"a field without a receiver":    {stream(t, struct{ Index, More any }{1, nil}, struct{ X list }{list{}}), wire.ErrRecursive, ""},
		"an ended stream is just ended": {nil, nil, ""},
		"messages of no bytes":          {[]byte{0, 0, 0, 0}, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := io.Copy(io.Discard, bound(bytes.NewReader(tt.data)))
			if !errors.Is(err, tt.want) || tt.want != nil && !strings.Contains(err.Error(), tt.words) {
				t.Errorf("expected %v with %q, got %v", tt.want, tt.words, err)
			}
		})
	}
}

// Memory is allocated for arrived bytes, not for the declared length.
func TestBoundAllocatesArrivedBytesOnly(t *testing.T) {
	const streams = 200
	claims := []byte{0xfd, 0x3f, 0xff, 0xff, 1, 2, 3} // declares four megabytes, and sends three bytes
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range streams {
		b := bound(bytes.NewReader(claims))
		b.Limit = wire.MaxMessage
		if _, err := b.ReadByte(); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatal(err)
		}
	}
	runtime.ReadMemStats(&after)
	if each := (after.TotalAlloc - before.TotalAlloc) / streams; each > 16<<10 {
		t.Errorf("declared length: found %d bytes of memory for %d declared bytes", each, wire.MaxMessage)
	}
}

func TestBoundReportsMessagesUnderWay(t *testing.T) {
	long, large := strings.Repeat("x", 1000), strings.Repeat("x", 100<<10)
	refused := errors.New("not now")
	for name, tt := range map[string]struct {
		says string
		grew error
		want error
	}{
		"taken":   {"began ended began grew 16384 grew 16384 ended ", nil, nil},
		"busy":    {"began ended began grew 16384 ended ", wire.ErrBusy, wire.ErrBusy},
		"refused": {"began ended began grew 16384 ended ", refused, refused},
	} {
		t.Run(name, func(t *testing.T) {
			said := ""
			b := bound(bytes.NewReader(stream(t, "short", long, large)))
			b.Limit = wire.MaxMessage
			b.Began = func() error { said += "began "; return nil }
			b.Grew = func(n int) error { said += fmt.Sprintf("grew %d ", n); return tt.grew }
			b.Ended = func() error { said += "ended "; return nil }
			if _, err := io.Copy(io.Discard, b); !errors.Is(err, tt.want) || said != tt.says {
				t.Errorf("found %q, %v, expected %q, %v", said, err, tt.says, tt.want)
			}
		})
	}
	b := bound(bytes.NewReader(stream(t, long)))
	b.Began, b.Ended = func() error { return refused }, func() error { return nil }
	if _, err := io.Copy(io.Discard, b); !errors.Is(err, refused) {
		t.Errorf("got %v", err)
	}
}

func FuzzBound(f *testing.F) {
	f.Add(stream(f, everyMessage()...))
	f.Add([]byte{0xfb, 1, 0, 0, 0, 0})
	f.Add([]byte{1, 0x81, 0, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := io.ReadAll(bound(bytes.NewReader(data)))
		if err == nil && !bytes.Equal(got, data) || !bytes.HasPrefix(data, got) {
			t.Fatalf("% x: passed as % x, %v", data, got, err)
		}
	})
}

// net/rpc transfers an error as its text. Known kinds of errors remain distinct, and errors of the connection are
// unchanged.
func TestErrorsOverTheWire(t *testing.T) {
	kinds := []error{wire.ErrNotLeader, wire.ErrNotStored, wire.ErrJobFinished, wire.ErrJobFailed, wire.ErrRejoin, wire.ErrOtherDataset}
	for _, kind := range kinds {
		got := wire.Error(rpc.ServerError(kind.Error() + ": and why"))
		for _, other := range kinds {
			if errors.Is(got, other) != (other == kind) {
				t.Errorf("%v is %v: %v", got, other, errors.Is(got, other))
			}
		}
		var server rpc.ServerError
		if !errors.As(got, &server) || got.Error() != kind.Error()+": and why" {
			t.Errorf("error %v: expected an answer of the server", got)
		}
	}
	for _, err := range []error{nil, io.ErrUnexpectedEOF, rpc.ErrShutdown, rpc.ServerError("seq: expected more")} {
		if got := wire.Error(err); got != err {
			t.Errorf("%v: got %v", err, got)
		}
	}
}
