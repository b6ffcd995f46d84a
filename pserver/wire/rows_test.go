package wire

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"trainmaster/pserver/floats"
	"trainmaster/pserver/table"
)

// aligned is a copy of b whose memory starts at a multiple of 8.
func aligned(b []byte) []byte {
	room := floats.Bytes(make([]float32, 2*(len(b)+8)/8+2))
	return append(room[:0], b...)
}

func sampleRows() []byte {
	payload, r := Layout(floats.Bytes(make([]float32, 64)), 2, 3, 2)
	copy(r.Spans, []table.Span{{Slot: 4, Rows: 1}, {Slot: 9, Rows: 2}})
	copy(r.IDs, []int64{-1, 7, 8})
	copy(r.Values, []float32{1, 2, 3, 4, 5, 6})
	Number(payload, 1, 3)
	return payload
}

func TestRowsRoundTrip(t *testing.T) {
	payload := sampleRows()
	if len(payload) != RowsSize(2, 3, 2) || len(payload) != 16+2*8+3*(8+8) {
		t.Fatalf("%d bytes", len(payload))
	}
	r, err := ParseRows(payload, 2, nil)
	if err != nil {
		t.Fatal(err)
	}
	if r.Part != 1 || r.Parts != 3 || !slices.Equal(r.Spans, []table.Span{{Slot: 4, Rows: 1}, {Slot: 9, Rows: 2}}) || !slices.Equal(r.IDs, []int64{-1, 7, 8}) || !slices.Equal(r.Values, []float32{1, 2, 3, 4, 5, 6}) {
		t.Fatalf("read %+v", r)
	}
	if most := MostRows(16); RowsSize(1, most, 16) > MaxPayload || RowsSize(1, most+1, 16) <= MaxPayload {
		t.Errorf("%d rows take %d bytes", most, RowsSize(1, most, 16))
	}
}

func TestParseRowsRefuses(t *testing.T) {
	for want, change := range map[string]func([]byte) []byte{
		"15 bytes":        func(b []byte) []byte { return b[:15] },
		"not the size of": func(b []byte) []byte { return b[:len(b)-1] },
		"4 rows of":       func(b []byte) []byte { b[4] = 4; return b },
		"part 3 of 3":     func(b []byte) []byte { b[8] = 3; return b },
		"slot 9 follows":  func(b []byte) []byte { b[16] = 9; return b },
		"4 rows togethe":  func(b []byte) []byte { b[20] = 2; return b },
		"4294967295 slo":  func(b []byte) []byte { copy(b, []byte{255, 255, 255, 255}); return b },
	} {
		if _, err := ParseRows(change(sampleRows()), 2, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
	}
}

// Whatever comes, it is refused, or is what Layout would have made of it.
func FuzzRows(f *testing.F) {
	f.Add(sampleRows(), 2)
	f.Add(sampleRows(), 0)
	f.Add(make([]byte, 16), 0)
	f.Fuzz(func(t *testing.T, b []byte, dim int) {
		if dim < 0 || dim > 1<<14 || len(b) > MaxPayload {
			return
		}
		b = aligned(b)
		r, err := ParseRows(b, dim, nil)
		if err != nil {
			return
		}
		again, view := Layout(floats.Bytes(make([]float32, len(b)/4+2)), len(r.Spans), len(r.IDs), dim)
		copy(view.Spans, r.Spans)
		copy(view.IDs, r.IDs)
		copy(floats.Bytes(view.Values), floats.Bytes(r.Values))
		Number(again, r.Part, r.Parts)
		if !bytes.Equal(again, b) {
			t.Fatalf("read and made again:\n% x\n% x", b, again)
		}
		rows := 0
		for _, s := range r.Spans {
			rows += int(s.Rows)
		}
		if rows != len(r.IDs) || len(r.Values) != rows*dim {
			t.Fatalf("%d rows in the slots, %d ids, %d values of %d", rows, len(r.IDs), len(r.Values), dim)
		}
	})
}
