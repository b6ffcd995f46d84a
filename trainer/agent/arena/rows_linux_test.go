package arena

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"

	"trainmaster/trainer/params"
)

// withTables are tensors and two tables. Rows of counts expire after 4 steps, and the second update of an id creates its row.
const withTables = `{"id":3,"op":"ps_open","tensors":[{"name":"w","shape":[2],"dtype":"float32"}],"optimizer":{"kind":"sgd","learning_rate":0.5},
	"tables":[{"name":"words","dim":3,"init":"uniform","scale":0.25,"seed":7},{"name":"counts","dim":1,"expiry":4,"admission":2}]}`

// grow grows the region of rows.
func (o *opened) grow(bytes int64) {
	o.t.Helper()
	body, err := json.Marshal(map[string]int64{"bytes": bytes})
	if err != nil {
		o.t.Fatal(err)
	}
	region, _, err := o.Grow(body)
	if err != nil {
		o.t.Fatal(err)
	}
	if region.Size < bytes {
		o.t.Fatalf("region: expected %d bytes, found %d", bytes, region.Size)
	}
}

// of has ids, and values of each, at the begin of the region: as much as fits in 1 KiB.
func (o *opened) of(table string, ids []int64, values ...float32) []Rows {
	o.t.Helper()
	o.grow(1024)
	x := Rows{Table: table, N: int64(len(ids)), IDs: 0, Values: 8 * int64(len(ids))}
	list, err := o.m.rowsOf(Request{Op: "test", Rows: []Rows{x}})
	if err != nil {
		o.t.Fatal(err)
	}
	copy(list[0].ids, ids)
	copy(list[0].values, values)
	return []Rows{x}
}

// rows returns the rows of ids.
func (o *opened) rows(table string, ids ...int64) []float32 {
	o.t.Helper()
	named := o.of(table, ids)
	o.do(Request{Op: "lookup", Rows: named})
	list, err := o.m.rowsOf(Request{Op: "test", Rows: named})
	if err != nil {
		o.t.Fatal(err)
	}
	return slices.Clone(list[0].values)
}

func minus(values []float32, by float32) []float32 {
	values = slices.Clone(values)
	for i := range values {
		values[i] -= by
	}
	return values
}

// The rows of any id have initial values, and a push changes the rows of its ids with the tensors, in one step. Gradients of an id that repeats are summed.
// Look-ups create no row.
func TestRows(t *testing.T) {
	addrs := startServers(t, 2)
	a, b := open(t, addrs, &session{t: t, incarnation: 1}, withTables), open(t, addrs, &session{t: t, incarnation: 2}, withTables)
	a.fill(a.m.parameters, 4)
	a.do(Request{Op: "ps_init"})
	b.do(Request{Op: "ps_init"})
	ids := []int64{1 << 62, -5, 0, math.MaxInt64}
	before := b.rows("words", ids...)
	if slices.Max(before) >= 0.25 || slices.Min(before) < -0.25 || slices.Equal(before[:3], before[3:6]) {
		t.Errorf("initial rows: expected numbers in [-0.25, 0.25) that differ between ids, found %v", before)
	}
	a.fill(a.m.gradients, 2)
	r := a.do(Request{Op: "push_pull", Rows: a.of("words", []int64{1 << 62, -5, 1 << 62}, 1, 1, 1, 4, 4, 4, 2, 2, 2)})
	if r.Step != 1 || r.Version != 1 {
		t.Errorf("the first push: expected step 1 and version 1, found %+v", r)
	}
	a.want(3)
	want := slices.Concat(minus(before[:3], 1.5), minus(before[3:6], 2), before[6:])
	if after := b.rows("words", ids...); !slices.Equal(after, want) {
		t.Errorf("rows after a push: expected %v, found %v", want, after)
	}
	if r := a.do(Request{Op: "push", Rows: a.of("words", []int64{0}, 2, 2, 2)}); r.Step != 2 {
		t.Errorf("the second push: expected step 2, found %+v", r)
	}
	if after := b.rows("words", 0); !slices.Equal(after, minus(before[6:9], 1)) {
		t.Errorf("rows after the second push: expected %v, found %v", minus(before[6:9], 1), after)
	}

	if n := a.stored("counts"); n != 0 {
		t.Errorf("rows of counts before their second update: expected none, found %d", n)
	}
	for range 2 {
		a.do(Request{Op: "push", Rows: a.of("counts", []int64{9}, 2)})
	}
	if row := b.rows("counts", 9)[0]; row != -1 || a.stored("counts") != 1 {
		t.Errorf("row after its second update: expected -1, found %v", row)
	}
	if n := a.stored("words"); n != 3 {
		t.Errorf("rows of words: expected the 3 that were updated, found %d", n)
	}
}

// stored returns the number of rows of a table on the servers.
func (o *opened) stored(table string) (n int) {
	o.t.Helper()
	if err := o.m.client.Scan(o.t.Context(), table, func(ids []int64, _ []float32) error { n += len(ids); return nil }); err != nil {
		o.t.Fatal(err)
	}
	return n
}

// A row expires after as many steps without an update as ps_open says.
func TestRowsExpire(t *testing.T) {
	addrs := startServers(t, 1)
	c := &committer{t: t, addrs: addrs, trainers: 1, changed: make(chan struct{})}
	a := open(t, addrs, &session{t: t, sync: true, incarnation: 1, step: c.step}, withTables)
	a.do(Request{Op: "ps_init"})
	for range 2 {
		a.do(Request{Op: "stage", Records: 1, Rows: a.of("counts", []int64{9}, 2)})
	}
	version := uint64(2) // of its last update
	for ; a.rows("counts", 9)[0] != 0 && version < 10; version++ {
		a.do(Request{Op: "stage", Records: 1})
	}
	if version != 7 {
		t.Errorf("a row with an update in step 2 that expires after 4 steps: expected its end in step 7, found it in step %d", version)
	}
}

// F472: a gradient of a row that is not finite is refused with the name of its table, and the step changes no tensor and no row. The next push works.
func TestNotFiniteRowIsNamed(t *testing.T) {
	a := open(t, startServers(t, 2), &session{t: t, incarnation: 1}, withTables)
	a.fill(a.m.parameters, 4)
	a.do(Request{Op: "ps_init"})
	before := a.rows("words", 8, 9)
	a.fill(a.m.gradients, 2)
	zero := float32(0)
	for words, named := range map[string][]float32{
		`table "words": element 2 of id 9 is NaN`:                              {1, 1, 1, 1, 1, zero / zero},
		`table "words": element 0 of the sum of the gradients of id 8 is +Inf`: {3e38, 1, 1, 3e38, 1, 1},
	} {
		ids := []int64{8, 9}
		if strings.Contains(words, "sum") {
			ids = []int64{8, 8}
		}
		_, err := a.try(Request{Op: "push_pull", Rows: a.of("words", ids, named...)})
		if bad, ok := errors.AsType[*params.NotFiniteError](err); !ok || bad.Tensor != "words" || !strings.Contains(err.Error(), words) {
			t.Errorf("expected %q, found %v", words, err)
		}
	}
	a.do(Request{Op: "pull"})
	a.want(4)
	if after := a.rows("words", 8, 9); !slices.Equal(after, before) {
		t.Errorf("rows: expected %v, found %v", before, after)
	}
	a.do(Request{Op: "push_pull", Rows: a.of("words", []int64{8, 9}, 1, 1, 1, 1, 1, 1)})
	a.want(3)
	if after := a.rows("words", 8, 9); !slices.Equal(after, minus(before, 0.5)) {
		t.Errorf("rows: expected %v, found %v", minus(before, 0.5), after)
	}
}

// F473: two trainers stage sums for rows, of which one has none. The step has the mean over all records. A late gradient of a row is in no version.
func TestStagedRows(t *testing.T) {
	addrs := startServers(t, 2)
	c := &committer{t: t, addrs: addrs, trainers: 2, changed: make(chan struct{})}
	a, b := open(t, addrs, &session{t: t, sync: true, incarnation: 1, step: c.step}, withTables), open(t, addrs, &session{t: t, sync: true, incarnation: 2, step: c.step}, withTables)
	a.fill(a.m.parameters, 4)
	a.do(Request{Op: "ps_init"})
	b.do(Request{Op: "ps_init"})
	before := a.rows("words", 7, 8)
	a.fill(a.m.gradients, 3)
	b.fill(b.m.gradients, 9)
	named := b.of("words", []int64{7, 8, 7}, 2, 2, 2, 8, 8, 8, 6, 6, 6)
	var group sync.WaitGroup
	group.Go(func() {
		if r := a.do(Request{Op: "stage", Records: 1}); !*r.Included {
			t.Errorf("expected to be in version 1, found %+v", r)
		}
	})
	if r := b.do(Request{Op: "stage", Records: 3, Rows: named}); !*r.Included {
		t.Errorf("expected to be in version 1, found %+v", r)
	}
	group.Wait()
	a.want(2.5)
	want := slices.Concat(minus(before[:3], 1), minus(before[3:], 1)) // 0.5 * 8 / 4
	if after := a.rows("words", 7, 8); !slices.Equal(after, want) {
		t.Errorf("rows after a step: expected %v, found %v", want, after)
	}

	c.mu.Lock()
	c.trainers = 1
	c.mu.Unlock()
	a.do(Request{Op: "stage", Records: 1})
	if r := b.do(Request{Op: "stage", Records: 3, Rows: b.of("words", []int64{7}, 8, 8, 8)}); *r.Included || r.Version != 2 {
		t.Errorf("a late gradient: expected version 2 without it, found %+v", r)
	}
	if after := a.rows("words", 7, 8); !slices.Equal(after, want) {
		t.Errorf("rows after a late gradient: expected %v, found %v", want, after)
	}
}

// F471: rows outside of the region, or of a table that was not declared, are refused, and nothing is read or written there. A region that grows keeps its content.
func TestRowsStayInTheRegion(t *testing.T) {
	a := open(t, startServers(t, 1), &session{t: t, incarnation: 1}, withTables)
	a.do(Request{Op: "ps_init"})
	words := func(n, ids, values int64) []Rows { return []Rows{{"words", n, ids, values}} }
	refused := func(want string, named []Rows) {
		t.Helper()
		for _, op := range []string{"lookup", "push", "push_pull"} {
			_, err := a.try(Request{Op: op, Rows: named})
			if _, ok := errors.AsType[*InvalidError](err); !ok || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: expected %q, found %v", op, want, err)
			}
		}
	}
	refused("the 0 bytes of the region, found 1 elements of 8 bytes at offset 0: grow the region with ps_rows", words(1, 0, 8))
	a.grow(200) // for 10 rows
	for want, named := range map[string][]Rows{
		"11 rows of 3 floats: expected at most the 200 bytes":                     words(11, 0, 88),
		"the 200 bytes of the region, found 30 elements of 4 bytes at offset 84":  words(10, 0, 84),
		"the 200 bytes of the region, found 10 elements of 8 bytes at offset 128": words(10, 128, 0),
		"found -1 elements of 8 bytes":                                            words(-1, 0, 0),
		"at offset -8":                                                            words(1, -8, 0),
		"found 9223372036854775807 elements":                                      words(math.MaxInt64, 0, 0),
		"a multiple of 8, found 4":                                                words(1, 4, 16),
		"a multiple of 4, found 10":                                               words(1, 0, 10),
		`table "letters": expected a table of ps_open`:                            {{"letters", 1, 0, 8}},
		`table "words": expected each table once`:                                 {{"words", 1, 0, 8}, {"words", 1, 0, 8}},
	} {
		refused(want, named)
	}
	a.do(Request{Op: "lookup", Rows: words(10, 0, 80)})
	a.m.region.bytes[199] = 42
	mapping := a.m.region.bytes
	a.grow(1 << 20)
	if got := a.m.region.bytes[199]; got != 42 || len(mapping) != 200 {
		t.Errorf("a region that has grown: expected its content, found %d", got)
	}
	a.grow(8)
	if len(a.m.region.bytes) < 1<<20 {
		t.Error("the region shrank")
	}
	for want, body := range map[string]string{"bytes: expected 1 to": `{"bytes":0}`, "found 68719476737": `{"bytes":68719476737}`} {
		if _, _, err := a.Grow([]byte(body)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("expected %q, found %v", want, err)
		}
	}
	b := open(t, startServers(t, 1), &session{t: t, incarnation: 1}, twoTensors)
	if _, _, err := b.Grow([]byte(`{"bytes":8}`)); err == nil || !strings.Contains(err.Error(), "expected tables in ps_open") {
		t.Errorf("a region without tables: found %v", err)
	}
}

// F413: tables that the servers do not accept.
func TestErrorsOfTables(t *testing.T) {
	s := &session{t: t, incarnation: 1}
	with := func(old, replacement string) string {
		if !strings.Contains(withTables, old) {
			t.Fatal(old)
		}
		return strings.Replace(withTables, old, replacement, 1)
	}
	for want, body := range map[string]string{
		`table "words": expected a name that no other table has`: with(`"counts"`, `"words"`),
		"clip-norm": with(`0.5}`, `0.5,"clip_norm":1}`),
		"wire-dtype bfloat16: expected float32 with embedding tables": with(`"id":3,`, `"id":3,"wire_dtype":"bfloat16",`),
		"has admission 2 without expiry":                              with(`"expiry":4,`, ``),
		"has rows of 0 floats: expected 1 to":                         with(`"dim":1`, `"dim":0`),
		`"key": expected a setting of a model, a table`:               with(`"dim":1`, `"dim":1,"key":"AAAA"`),
	} {
		o := New(t.Context(), Config{Servers: func(context.Context) ([]string, error) { return nil, errors.New("not asked") }, Log: quiet()})
		_, _, err := o.Open(s, s, []byte(body))
		if _, ok := errors.AsType[*InvalidError](err); !ok || !strings.Contains(err.Error(), want) {
			t.Errorf("expected %q, found %v", want, err)
		}
		o.Close()
	}
}
