package sample_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"math"
	"testing"

	"trainmaster/dataset/sample"
)

func TestGoldenBytes(t *testing.T) {
	got := hex.EncodeToString(sample.Append(nil, sample.Sample{Label: 7, Scale: 0.0625, Pixels: []byte{0, 8, 16}}))
	const want = "01000000" + "0000803d" + "0700000000000000" + "000810"
	if got != want {
		t.Fatalf("encoding is %s, want %s", got, want)
	}
}

func TestDecodeRefuses(t *testing.T) {
	good := sample.Append(nil, sample.Sample{Label: 3, Scale: 1, Pixels: []byte("pixels")})
	damaged := func(change func(rec []byte)) []byte {
		rec := bytes.Clone(good)
		change(rec)
		return rec
	}
	for name, rec := range map[string][]byte{
		"empty":          nil,
		"short header":   good[:sample.HeaderSize-1],
		"other version":  damaged(func(r []byte) { r[0] = 2 }),
		"reserved byte":  damaged(func(r []byte) { r[3] = 1 }),
		"scale is NaN":   sample.Append(nil, sample.Sample{Scale: float32(math.NaN())}),
		"infinite scale": sample.Append(nil, sample.Sample{Scale: float32(math.Inf(-1))}),
	} {
		t.Run(name, func(t *testing.T) {
			s := sample.Sample{Label: 42, Pixels: []byte("kept")}
			if err := sample.Decode(rec, &s); !errors.Is(err, sample.ErrMalformed) {
				t.Fatalf("Decode: found error %v, expected ErrMalformed", err)
			}
			if s.Label != 42 || string(s.Pixels) != "kept" {
				t.Fatalf("refused record: expected an unchanged sample, found %+v", s)
			}
		})
	}
}

func TestDecodeCopiesAndReuses(t *testing.T) {
	rec := sample.Append(nil, sample.Sample{Label: 1, Scale: 1, Pixels: []byte("abcd")})
	s := sample.Sample{Pixels: make([]byte, 0, 16)}
	room := &s.Pixels[:1][0]
	if err := sample.Decode(rec, &s); err != nil {
		t.Fatal(err)
	}
	clear(rec)
	if string(s.Pixels) != "abcd" {
		t.Fatalf("pixels after a reuse of the record buffer: found %q", s.Pixels)
	}
	if &s.Pixels[0] != room {
		t.Fatal("expected a reuse of the memory of s.Pixels")
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(sample.Append(nil, sample.Sample{Label: -5, Scale: 0.5, Pixels: []byte{1, 2, 3}}))
	f.Add([]byte{1, 0, 0})
	f.Add(sample.Append(nil, sample.Sample{Label: 2, Classes: 3, Scale: 1, Numbers: []float32{1.5, -2}}))
	f.Add(sample.Append(nil, sample.Sample{Label: 2, Classes: 3, Scale: 0.5, Pixels: []byte{1, 2}}))
	f.Fuzz(func(t *testing.T, rec []byte) {
		var s sample.Sample
		if sample.Decode(rec, &s) != nil {
			return
		}
		if again := sample.Append(nil, s); !bytes.Equal(again, rec) {
			t.Fatalf("% x: decoded as %+v, encoded again as % x", rec, s, again)
		}
	})
}
