package modelfile

import (
	"bufio"
	"encoding/json"
	"io"
	"slices"
	"strconv"

	"trainmaster/internal/safetensors"
	"trainmaster/pserver/checkpoint"
	"trainmaster/pserver/floats"
)

// Export writes a model to a safetensors file, with its set and version as metadata.
func Export(path string, m *checkpoint.Model, set, version uint64, layout string) error {
	meta := map[string]string{"version": strconv.FormatUint(version, 10), "set": strconv.FormatUint(set, 10)}
	infos := slices.Clone(m.Tensors())
	var turned []string
	if layout == LayoutPyTorch {
		for i, t := range infos {
			if isLinear(t, m.State()) {
				infos[i].Shape = []int{t.Shape[1], t.Shape[0]}
				turned = append(turned, t.Name)
			}
		}
		list, err := json.Marshal(turned)
		if err != nil {
			return err
		}
		meta["format"], meta[transposedKey] = "pt", string(list)
	}
	for k := range m.Tables() {
		table, err := tableTensors(m, k)
		if err != nil {
			return err
		}
		infos = append(infos, table...)
	}
	return safetensors.Create(path, func(w io.Writer) error {
		buffered := bufio.NewWriterSize(w, 1<<20)
		out, err := safetensors.NewWriter(buffered, infos, meta)
		if err != nil {
			return err
		}
		for _, t := range m.Tensors() {
			values, err := m.Read(t.Name)
			if err != nil {
				return err
			}
			if slices.Contains(turned, t.Name) {
				values = transposed(values, t.Shape[0], t.Shape[1])
			}
			if _, err := out.Write(floats.Bytes(values)); err != nil {
				return err
			}
		}
		for k := range m.Tables() {
			if err := exportTable(out, m, k); err != nil {
				return err
			}
		}
		if err := out.Close(); err != nil {
			return err
		}
		return buffered.Flush()
	})
}
