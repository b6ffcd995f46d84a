package arena

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"unsafe"

	"trainmaster/trainer/params"
)

// MaxRegion is the greatest size of a region of rows, in bytes. The kernel allocates the parts that are in use.
const MaxRegion = 64 << 30

// Table declares a table of embeddings. [params.Table] has the same fields. The servers choose its key.
type Table struct {
	Name      string  `json:"name"`
	Dim       int     `json:"dim"`
	Init      string  `json:"init"`
	Scale     float32 `json:"scale"`
	Seed      uint64  `json:"seed"`
	Expiry    uint64  `json:"expiry"`
	Admission uint32  `json:"admission"`
}

// Rows names rows of a table in the region of rows: N ids, and N times dim values, which are rows or their gradients.
type Rows struct {
	Table  string `json:"table"`
	N      int64  `json:"n"`
	IDs    int64  `json:"ids"`    // offset in bytes, a multiple of 8; int64, little endian
	Values int64  `json:"values"` // offset in bytes, a multiple of 4; float32, little endian
}

// Region is the region of rows.
type Region struct {
	Size int64 `json:"size"` // bytes
}

// rows are the rows of a table that a request names.
type rows struct {
	table  string
	ids    []int64
	values []float32 // [ids, dim]
}

// tablesOf returns the tables for the configuration of the client.
func tablesOf(list []Table) (tables []params.Table, err error) {
	names := map[string]bool{}
	for _, t := range list {
		if names[t.Name] {
			return nil, invalidf("table %q: expected a name that no other table has", t.Name)
		}
		names[t.Name] = true
		tables = append(tables, params.Table{
			Name: t.Name, Dim: t.Dim, Init: cmp.Or(t.Init, params.Zeros), Scale: t.Scale, Seed: t.Seed, Expiry: t.Expiry, Admission: t.Admission,
		})
	}
	return tables, nil
}

// Grow makes the region of rows as large as a request needs it, and returns its size and descriptor. The caller does not close the descriptor. The content and
// earlier mappings of the region stay valid.
func (a *Arena) Grow(body []byte) (region Region, fd int, err error) {
	var r struct {
		Bytes int64 `json:"bytes"`
	}
	if err := json.Unmarshal(body, &r); err != nil {
		return region, 0, invalidf("ps_rows: %v", err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	switch m := a.model; {
	case m == nil:
		return region, 0, invalidf("ps_rows: expected ps_open before it")
	case len(m.config.Tables) == 0:
		return region, 0, invalidf("ps_rows: expected tables in ps_open, found none")
	case r.Bytes < 1 || r.Bytes > MaxRegion:
		return region, 0, invalidf("ps_rows: bytes: expected 1 to %d, found %d", int64(MaxRegion), r.Bytes)
	case a.current != nil && !a.current.ended():
		return region, 0, invalidf("ps_rows: operation %d is in progress: repeat it with the same seq first", a.current.seq)
	case m.region == nil:
		m.region, err = newMemory(r.Bytes, growing)
	default:
		err = m.region.grow(r.Bytes)
	}
	if err != nil {
		return region, 0, err
	}
	return Region{int64(len(a.model.region.bytes))}, a.model.region.fd, nil
}

// rowsOf returns the rows that a request names.
func (m *model) rowsOf(r Request) (list []rows, err error) {
	named := map[string]bool{}
	for _, x := range r.Rows {
		dim := 0
		for _, t := range m.config.Tables {
			if t.Name == x.Table {
				dim = t.Dim
			}
		}
		switch {
		case dim == 0:
			return nil, invalidf("%s: table %q: expected a table of ps_open", r.Op, x.Table)
		case named[x.Table]:
			return nil, invalidf("%s: table %q: expected each table once, found it twice", r.Op, x.Table)
		}
		named[x.Table] = true
		one := rows{table: x.Table}
		if one.ids, err = view[int64](m.region, x.IDs, x.N); err == nil {
			one.values, err = view[float32](m.region, x.Values, x.N*int64(dim))
		}
		if err != nil {
			return nil, invalidf("%s: table %q: %d rows of %d floats: %v", r.Op, x.Table, x.N, dim, err)
		}
		list = append(list, one)
	}
	return list, nil
}

// view returns n elements at an offset of the region.
func view[T int64 | float32](region *memory, at, n int64) ([]T, error) {
	element, size := int64(unsafe.Sizeof(*new(T))), int64(0)
	if region != nil {
		size = int64(len(region.bytes))
	}
	//guard:rows-within-region
	if n < 0 || n > size/element || at < 0 || at > size-n*element {
		return nil, fmt.Errorf("expected at most the %d bytes of the region, found %d elements of %d bytes at offset %d: grow the region with ps_rows", size, n, element, at)
	}
	if at%element != 0 {
		return nil, fmt.Errorf("expected an offset that is a multiple of %d, found %d", element, at)
	}
	if n == 0 {
		return nil, nil
	}
	return unsafe.Slice((*T)(unsafe.Pointer(&region.bytes[at])), n), nil
}

// lookup fills values with the rows of ids. In a synchronous job they are not older than the parameters in the arena. If they are newer, a step was made
// without this trainer, and a gradient of these parameters and rows is too late for its step.
func (m *model) lookup(ctx context.Context, r Request) (Reply, error) {
	list, err := m.rowsOf(r)
	if err != nil {
		return Reply{}, err
	}
	least := r.Version
	if m.config.Mode == params.Sync {
		least = max(least, m.held)
	}
	for _, x := range list {
		if _, err := m.client.Lookup(ctx, x.table, x.ids, x.values, least); err != nil {
			return Reply{}, fmt.Errorf("table %q: %w", x.table, err)
		}
	}
	return Reply{Version: m.held}, nil
}

// check returns an error for gradients of rows that the client refuses, before the gradients of the tensors are applied.
func (m *model) check(list []rows, step uint64) error {
	for _, x := range list {
		if err := m.client.CheckRows(x.table, step, x.ids, x.values); err != nil {
			return err
		}
	}
	return nil
}

// stageAll stages the rows of all tables, then the gradients of the tensors. A commit needs a stage of each table, also of one without rows.
func (m *model) stageAll(ctx context.Context, at uint64, r Request) error {
	list, err := m.rowsOf(r)
	if err != nil {
		return err
	}
	for _, t := range m.config.Tables {
		of := rows{table: t.Name}
		for _, x := range list {
			if x.table == t.Name {
				of = x
			}
		}
		//guard:each-table-is-staged
		if err := m.client.StageRows(ctx, of.table, at, of.ids, of.values, r.Records); err != nil {
			return err
		}
	}
	return m.client.Stage(ctx, at, m.gradients, r.Records)
}
