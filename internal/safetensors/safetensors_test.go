package safetensors

import (
	"bytes"
	"encoding/binary"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"trainmaster/scripts/prepared"
)

var sample = []Tensor{
	FromFloat32("w1", []int{2, 3}, []float32{1, -2, 3.5, 0, 1e-30, 6}),
	FromFloat32("scalar", nil, []float32{7}),
	{Info{"none", I64, []int{0, 4}}, []byte{}},
	{Info{"steps", U64, []int{1}}, []byte{1, 2, 3, 4, 5, 6, 7, 8}},
}

func TestRoundTrip(t *testing.T) {
	path := filepath.Join(t.TempDir(), "model.safetensors")
	metadata := map[string]string{"format": "pt", "task": `digits "10"`}
	if err := WriteFile(path, sample, metadata); err != nil {
		t.Fatal(err)
	}
	tensors, gotMetadata, err := ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(gotMetadata, metadata) {
		t.Errorf("metadata %v, expected %v", gotMetadata, metadata)
	}
	byName := map[string]Tensor{}
	for _, tensor := range tensors {
		byName[tensor.Name] = tensor
	}
	for _, want := range sample {
		got := byName[want.Name]
		if got.DType != want.DType || len(got.Shape) != len(want.Shape) || !bytes.Equal(got.Data, want.Data) {
			t.Errorf("read %+v, expected %+v", got, want)
		}
	}
	values, err := byName["w1"].Float32()
	if err != nil || values[1] != -2 || values[4] != 1e-30 {
		t.Errorf("values %v, %v", values, err)
	}
	if left, err := filepath.Glob(filepath.Join(filepath.Dir(path), "*tmp*")); err != nil || len(left) > 0 {
		t.Errorf("temporary files left: %v, %v", left, err)
	}
}

// An empty tensor has no bytes to read, wherever it lies.
func TestEmptyTensors(t *testing.T) {
	for name, list := range map[string][]Tensor{
		"alone":   {FromFloat32("a", []int{0}, nil)},
		"at last": {FromFloat32("a", []int{1}, []float32{1}), FromFloat32("b", []int{2, 0}, nil)},
	} {
		path := filepath.Join(t.TempDir(), "empty.safetensors")
		if err := WriteFile(path, list, nil); err != nil {
			t.Fatal(err)
		}
		if got, _, err := ReadFile(path); err != nil || len(got) != len(list) || len(got[len(got)-1].Data) != 0 {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
}

// The smallest file, byte by byte: the format has other writers.
func TestBytes(t *testing.T) {
	var b bytes.Buffer
	if err := Write(&b, []Tensor{FromFloat32("a", []int{1}, []float32{1})}, nil); err != nil {
		t.Fatal(err)
	}
	const header = `{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}  `
	want := append([]byte{byte(len(header)), 0, 0, 0, 0, 0, 0, 0}, header...)
	want = append(want, 0, 0, 0x80, 0x3f)
	if !bytes.Equal(b.Bytes(), want) {
		t.Fatalf("wrote %q, expected %q", b.Bytes(), want)
	}
}

func TestWriteRefuses(t *testing.T) {
	for want, tensors := range map[string][]Tensor{
		"there twice":   {sample[1], sample[1]},
		"is reserved":   {FromFloat32("__metadata__", nil, []float32{1})},
		"expected 24":   {{Info{"w", F32, []int{2, 3}}, make([]byte, 20)}},
		"unknown dtype": {{Info{"w", "F8", []int{1}}, []byte{1}}},
		"negative":      {{Info{"w", F32, []int{-1}}, nil}},
		"overflows":     {{Info{"w", F32, []int{1 << 40, 1 << 40}}, nil}},
	} {
		if err := Write(&bytes.Buffer{}, tensors, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, expected one with %q", err, want)
		}
	}
}

func TestWriterCountsTheData(t *testing.T) {
	w, err := NewWriter(&bytes.Buffer{}, []Info{{"w", F32, []int{2}}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(make([]byte, 6)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err == nil || !strings.Contains(err.Error(), "2 bytes") {
		t.Errorf("two bytes short: %v", err)
	}
	if _, err := w.Write(make([]byte, 3)); err == nil {
		t.Error("one byte too many was taken")
	}
}

func file(header string, data int) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(b, header...), make([]byte, data)...)
}

func open(b []byte) (*File, error) { return NewFile(bytes.NewReader(b), int64(len(b))) }

func TestReadRefuses(t *testing.T) {
	for want, b := range map[string][]byte{
		"no safetensors file":     {1, 2, 3},
		"header of 184467440":     {255, 255, 255, 255, 255, 255, 255, 255, '{', '}'},
		"the file has 10":         {3, 0, 0, 0, 0, 0, 0, 0, '{', '}'},
		"start with {":            file(`[]`, 0),
		"unexpected end":          file(`{"a":`, 0),
		"unknown dtype":           file(`{"a":{"dtype":"F31","shape":[1],"data_offsets":[0,4]}}`, 4),
		"unknown field":           file(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1}}`, 4),
		"expected 8 bytes":        file(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}`, 4),
		"negative":                file(`{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,-4]}}`, 0),
		"starts at data offset 4": file(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}`, 8),
		"starts at data offset 2": file(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}}`, 6),
		"the file holds 5":        file(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}`, 5),
		"cannot unmarshal":        file(`{"__metadata__":{"a":1}}`, 0),
	} {
		if _, err := open(b); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, expected one with %q", err, want)
		}
	}
}

func FuzzNewFile(f *testing.F) {
	var b bytes.Buffer
	if err := Write(&b, sample, map[string]string{"k": "v"}); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
	f.Add(file(`{}`, 0))
	f.Fuzz(func(t *testing.T, b []byte) {
		parsed, err := open(b)
		if err != nil {
			return
		}
		total := int64(0)
		for _, info := range parsed.Infos() {
			r, err := parsed.Open(info.Name)
			if err != nil {
				t.Fatal(err)
			}
			total += r.Size()
		}
		if total > int64(len(b)) {
			t.Fatalf("%d bytes of tensors in a file of %d", total, len(b))
		}
	})
}

// The file is read, and one is written, by the Python package that defined the format.
func TestPython(t *testing.T) {
	python := prepared.Python(t)
	dir := t.TempDir()
	ours, theirs := filepath.Join(dir, "ours.safetensors"), filepath.Join(dir, "theirs.safetensors")
	if err := WriteFile(ours, sample, map[string]string{"made": "here"}); err != nil {
		t.Fatal(err)
	}
	script := `
import sys, numpy, safetensors, safetensors.numpy
t = safetensors.numpy.load_file(sys.argv[1])
assert t["w1"].shape == (2, 3) and t["w1"].dtype == numpy.float32 and t["w1"][0, 1] == -2, t["w1"]
assert t["scalar"].shape == () and t["scalar"] == 7, t["scalar"]
assert t["none"].shape == (0, 4), t["none"]
assert t["steps"][0] == 0x0807060504030201, t["steps"]
with safetensors.safe_open(sys.argv[1], framework="numpy") as f:
    assert f.metadata() == {"made": "here"}, f.metadata()
safetensors.numpy.save_file({"b": t["w1"] * 2, "a": t["steps"], "z": numpy.arange(5, dtype=numpy.int8)}, sys.argv[2], {"made": "there"})
`
	if out, err := exec.Command(python, "-c", script, ours, theirs).CombinedOutput(); err != nil {
		t.Fatalf("python: %v\n%s", err, out)
	}
	tensors, metadata, err := ReadFile(theirs)
	if err != nil {
		t.Fatal(err)
	}
	if metadata["made"] != "there" || len(tensors) != 3 {
		t.Errorf("read %v with %v", tensors, metadata)
	}
	for _, tensor := range tensors {
		if tensor.Name != "b" {
			continue
		}
		if values, err := tensor.Float32(); err != nil || values[1] != -4 || values[5] != 12 {
			t.Errorf("values %v, %v", values, err)
		}
	}
}
