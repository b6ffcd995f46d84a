package etcdstore_test

import (
	"bytes"
	"compress/gzip"
	"encoding/gob"
	"errors"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"testing"

	"trainmaster/etcdstore"
)

type columns struct {
	Name  string
	Plane []byte
	Ids   []uint64
	ByKey map[string]int
}

func sample() columns {
	return columns{Name: "n", Plane: bytes.Repeat([]byte{1, 2, 3}, 10_000), Ids: []uint64{1, 1 << 63}, ByKey: map[string]int{"a": -1}}
}

func encode(t testing.TB, v any) []byte {
	t.Helper()
	b, err := etcdstore.Encode(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestCodecRoundTrip(t *testing.T) {
	var wg sync.WaitGroup
	for range 8 { // Encode and Decode share pooled compressors
		wg.Go(func() {
			for range 20 {
				var got columns
				b, err := etcdstore.Encode(sample())
				if err == nil {
					err = etcdstore.Decode(b, &got, 1<<20)
				}
				if err != nil || !reflect.DeepEqual(got, sample()) {
					t.Errorf("decoded: got %+v, %v", got.Name, err)
				}
			}
		})
	}
	wg.Wait()
}

// Each value can be decoded alone, whatever values the codec encoded before it.
func TestCodecDecodesEachValueAlone(t *testing.T) {
	for _, want := range []columns{{}, {Name: "first"}, sample(), {Ids: []uint64{7}}, {ByKey: map[string]int{"b": 2, "c": 3}}} {
		var got columns
		if err := etcdstore.Decode(encode(t, &want), &got, 1<<20); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%+v: decoded as %+v, %v", want, got, err)
		}
	}
}

// gob describes a type behind an interface at its first use, possibly in an earlier value.
func TestCodecRefusesInterfaces(t *testing.T) {
	type leaf struct{ Any any }
	type tree struct{ Leaves map[string][]*leaf }
	for _, v := range []any{leaf{}, &tree{}, []any{1}} {
		if b, err := etcdstore.Encode(v); err == nil {
			t.Errorf("%T: expected an error, found %d bytes", v, len(b))
		}
	}
}

// The encoding is gob in gzip: the standard packages can decode it.
func TestCodecIsGobInGzip(t *testing.T) {
	zip, err := gzip.NewReader(bytes.NewReader(encode(t, sample())))
	if err != nil {
		t.Fatal(err)
	}
	var got columns
	if err := gob.NewDecoder(zip).Decode(&got); err != nil || !reflect.DeepEqual(got, sample()) {
		t.Errorf("%+v, %v", got.Name, err)
	}
}

// F18: Decode refuses each truncated value and each flipped bit.
func TestDecodeRefusesDamage(t *testing.T) {
	whole := encode(t, sample())
	damaged := map[string][]byte{
		"empty":          nil,
		"not gzip":       []byte("task queues"),
		"trailing bytes": append(bytes.Clone(whole), 0),
		"two streams":    append(bytes.Clone(whole), whole...),
		"gzip, not gob":  gzipped(t, []byte("task queues")),
		"gob and more":   gzipped(t, append(gobbed(t, sample()), gobbed(t, 1)...)),
	}
	for n := range len(whole) {
		damaged["cut to "+strings.Repeat("i", n)] = whole[:n]
	}
	for name, b := range damaged {
		got := columns{}
		err := etcdstore.Decode(b, &got, 1<<20)
		if !errors.Is(err, etcdstore.ErrCorrupt) {
			t.Errorf("%.30s (%d bytes): %v, want ErrCorrupt", name, len(b), err)
		} else if !strings.Contains(err.Error(), "snapshot") {
			t.Errorf("%.30s: expected an action in the error, found %v", name, err)
		}
	}
	for bit := range len(whole) * 8 {
		flipped := bytes.Clone(whole)
		flipped[bit/8] ^= 1 << (bit % 8)
		got := columns{}
		if err := etcdstore.Decode(flipped, &got, 1<<20); err == nil && !reflect.DeepEqual(got, sample()) {
			t.Errorf("bit %d flipped: decoded without an error", bit)
		}
	}
}

func gobbed(t *testing.T, v any) []byte {
	t.Helper()
	var out bytes.Buffer
	if err := gob.NewEncoder(&out).Encode(v); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func gzipped(t *testing.T, b []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	zip := gzip.NewWriter(&out)
	if _, err := zip.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := zip.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestDecodeIsBounded(t *testing.T) {
	bomb := encode(t, columns{Plane: make([]byte, 32<<20)})
	if len(bomb) > 1<<20 {
		t.Fatalf("compressed bomb: found %d bytes", len(bomb))
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	var got columns
	if err := etcdstore.Decode(bomb, &got, 64<<10); !errors.Is(err, etcdstore.ErrCorrupt) {
		t.Fatalf("bomb: got %v", err)
	}
	runtime.ReadMemStats(&after)
	if taken := after.TotalAlloc - before.TotalAlloc; taken > 8<<20 {
		t.Errorf("bomb: %d bytes allocated before the refusal", taken)
	}
	if err := etcdstore.Decode(bomb, &got, 33<<20); err != nil || len(got.Plane) != 32<<20 {
		t.Errorf("within its limit: %v", err)
	}
}

func TestEncodeRefusesUnsupportedTypes(t *testing.T) {
	if _, err := etcdstore.Encode(struct{ F func() }{}); err == nil || !strings.Contains(err.Error(), "encode") {
		t.Errorf("%v", err)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(encode(f, sample()))
	f.Add([]byte{0x1f, 0x8b})
	f.Fuzz(func(t *testing.T, b []byte) {
		var got columns
		if err := etcdstore.Decode(b, &got, 1<<16); err != nil {
			return
		}
		var again columns
		if err := etcdstore.Decode(encode(t, got), &again, 1<<20); err != nil || !reflect.DeepEqual(got, again) {
			t.Errorf("%+v: decoded again as %+v, %v", got, again, err)
		}
	})
}
