package wire

import (
	"bytes"
	"encoding/hex"
	"errors"
	"math"
	"testing"

	"trainmaster/pserver/floats"
)

// sample has another value in every byte, so that a swapped field shows.
var sample = Header{
	Op: PushPull, DType: Float32, Flags: Reply,
	Block: 0x0807060504030201, Incarnation: 0x1817161514131211,
	Placement: 0x24232221, Argument: math.Float32bits(0.5),
	Step: 0x3837363534333231, Sequence: 0x4847464544434241,
	Version: 0x54535251, ShardEpoch: 0x6261, JobEpoch: 0x7271, Length: 8,
}

// The vector is part of the format: docs/formats/parameter-server-wire.md shows it too.
const vector = "544d5053" + "01040101" + "0102030405060708" + "1112131415161718" +
	"21222324" + "0000003f" + "3132333435363738" + "4142434445464748" +
	"51525354" + "6162" + "7172" + "08000000" + "c2a9961d" + "0000803f" + "000000c0"

func TestVector(t *testing.T) {
	payload := floats.Bytes([]float32{1, -2})
	var raw [HeaderSize]byte
	sample.Encode(&raw)
	Seal(&raw, payload)
	if got := hex.EncodeToString(append(raw[:], payload...)); got != vector {
		t.Fatalf("frame\n%s, expected\n%s", got, vector)
	}
	var back Header
	if err := back.Decode(&raw); err != nil || back != sample {
		t.Fatalf("decoded %+v, %v; expected %+v", back, err, sample)
	}
	if err := Verify(&raw, payload); err != nil {
		t.Fatal(err)
	}
}

// The same frame with the same parameters as bfloat16.
const vectorBFloat16 = "544d5053" + "01040201" + "0102030405060708" + "1112131415161718" +
	"21222324" + "0000003f" + "3132333435363738" + "4142434445464748" +
	"51525354" + "6162" + "7172" + "04000000" + "83368d9a" + "803f" + "00c0"

func TestVectorBFloat16(t *testing.T) {
	payload := make([]byte, 4)
	Narrow(payload, []float32{1, -2})
	head := sample
	head.DType, head.Length = BFloat16, 4
	var raw [HeaderSize]byte
	head.Encode(&raw)
	Seal(&raw, payload)
	if got := hex.EncodeToString(append(raw[:], payload...)); got != vectorBFloat16 {
		t.Fatalf("frame\n%s, expected\n%s", got, vectorBFloat16)
	}
}

func TestDecodeRefuses(t *testing.T) {
	for name, change := range map[string]func(*[HeaderSize]byte){
		"magic":         func(b *[HeaderSize]byte) { b[0] = 'P' },
		"version":       func(b *[HeaderSize]byte) { b[4] = 2 },
		"op zero":       func(b *[HeaderSize]byte) { b[5] = 0 },
		"op unknown":    func(b *[HeaderSize]byte) { b[5] = 11 },
		"dtype":         func(b *[HeaderSize]byte) { b[6] = 4 },
		"flags":         func(b *[HeaderSize]byte) { b[7] = 16 },
		"one byte over": func(b *[HeaderSize]byte) { copy(b[56:], []byte{1, 0, 16, 0}) },
		"length 2^32-1": func(b *[HeaderSize]byte) { copy(b[56:], []byte{255, 255, 255, 255}) },
	} {
		t.Run(name, func(t *testing.T) {
			var raw [HeaderSize]byte
			sample.Encode(&raw)
			change(&raw)
			var fault *Fault
			if err := new(Header).Decode(&raw); !errors.As(err, &fault) || fault.Code != Malformed || !fault.Code.Fatal() {
				t.Fatalf("decoded to %v, expected a fault %v", err, Malformed)
			}
		})
	}
}

func TestEncodeDecodeAllocateNothing(t *testing.T) {
	var raw [HeaderSize]byte
	payload := make([]byte, 4096)
	allocs := testing.AllocsPerRun(100, func() {
		h := sample
		h.Encode(&raw)
		Seal(&raw, payload)
		if h.Decode(&raw) != nil || Verify(&raw, payload) != nil {
			t.Fatal("round trip")
		}
	})
	if allocs != 0 {
		t.Fatalf("%v allocations per frame", allocs)
	}
}

func FuzzHeader(f *testing.F) {
	var raw [HeaderSize]byte
	sample.Encode(&raw)
	f.Add(raw[:])
	f.Add(make([]byte, HeaderSize))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < HeaderSize {
			return
		}
		in, out := [HeaderSize]byte(b[:HeaderSize]), [HeaderSize]byte{}
		var h Header
		if err := h.Decode(&in); err != nil {
			return
		}
		h.Encode(&out)
		if !bytes.Equal(in[:crcOffset], out[:crcOffset]) {
			t.Fatalf("decoded and encoded again:\n% x\n% x", in, out)
		}
		if h.Length > MaxPayload {
			t.Fatalf("length %d accepted", h.Length)
		}
	})
}

func FuzzBitFlip(f *testing.F) {
	f.Add([]byte("payload"), uint(3))
	f.Fuzz(func(t *testing.T, payload []byte, bit uint) {
		if len(payload) > MaxPayload {
			return
		}
		h := sample
		h.Length = uint32(len(payload))
		frame := make([]byte, HeaderSize, HeaderSize+len(payload))
		raw := (*[HeaderSize]byte)(frame)
		h.Encode(raw)
		Seal(raw, payload)
		frame = append(frame, payload...)
		bit %= uint(len(frame) * 8)
		frame[bit/8] ^= 1 << (bit % 8)
		if err := Verify((*[HeaderSize]byte)(frame), frame[HeaderSize:]); err == nil {
			t.Fatalf("bit %d flipped unnoticed", bit)
		}
	})
}

func TestFinite(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	for _, bad := range []float32{inf, -inf, nan} {
		for _, at := range []int{0, 1, 7, 100, 1000} {
			f := make([]float32, 1001)
			f[at] = bad
			if floats.Finite(f) || floats.FirstNotFinite(f) != at {
				t.Errorf("%v at %d: finite %v, first %d", bad, at, floats.Finite(f), floats.FirstNotFinite(f))
			}
		}
	}
	for _, good := range [][]float32{nil, {0}, {math.MaxFloat32, -math.MaxFloat32}, {1e-45}} {
		if !floats.Finite(good) {
			t.Errorf("%v taken for not finite", good)
		}
	}
}
