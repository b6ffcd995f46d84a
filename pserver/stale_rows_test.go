package pserver_test

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/pserver"
	"trainmaster/pserver/staleness"
	"trainmaster/trainer/params"
)

// A push of rows that others updated since the trainer looked them up has the learning rate times 1/staleness; a trainer's own pushes do
// not count, nor does what others pushed before the lookup.
func TestScaleCoversRows(t *testing.T) {
	table := params.Table{Name: "rows", Dim: 1, Init: params.Zeros}
	book := startServers(t, 1, pserver.Config{})
	join := func(ordinal uint32) *params.Client {
		c := connect(t, book, params.Config{Mode: params.Async, Ordinal: ordinal, Optimizer: params.Optimizer{Kind: params.SGD, LearningRate: 1},
			Staleness: params.Staleness{Policy: staleness.Scale, Limit: 1}, Tables: []params.Table{table}})
		mustInit(t, c, little())
		return c
	}
	slow, fast := join(0), join(1)
	ids := []int64{5}
	step := map[*params.Client]uint64{}
	push := func(c *params.Client) {
		t.Helper()
		step[c]++
		must(t, c.PushRows(within(t), table.Name, step[c], 1, ids, []float32{-1}))
	}
	value := func(c *params.Client) float32 { return rowsOf(t, c, table, ids, 0)[0] }
	value(slow)
	push(slow)
	push(slow) // its own pushes make none stale
	if got := value(fast); got != 2 {
		t.Fatalf("after two fresh pushes the row is %v, expected 2", got)
	}
	for range 4 {
		push(fast)
	}
	push(slow) // missed 4
	if got := value(fast); got != 6.25 {
		t.Errorf("after a push that missed 4 updates the row is %v, expected 6.25", got)
	}
	value(slow)
	push(fast)
	push(slow) // missed 1, which is the limit
	if got := value(fast); got != 8.25 {
		t.Errorf("after a push within the limit the row is %v, expected 8.25", got)
	}
}

// A setting that does not cover rows, or an unbounded one, is refused with tables, by the trainer and by the server.
func TestSettingsThatDoNotCoverTablesAreRefused(t *testing.T) {
	table := params.Table{Name: "rows", Dim: 1, Init: params.Zeros}
	for want, change := range map[string]func(*params.Config){
		"wire-dtype bfloat16: expected float32":                 func(c *params.Config) { c.WireDType = params.BFloat16 },
		`table "rows" has admission 3 without expiry: expected`: func(c *params.Config) { c.Tables[0].Admission = 3 },
	} {
		cfg := params.Config{Addrs: newBook(1).complete, Mode: params.Async, Incarnation: 1, Optimizer: plainSGD, Tables: slices.Clone([]params.Table{table})}
		if err := cfg.Validate(); err != nil {
			t.Fatal(err)
		}
		change(&cfg)
		if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, expected %q", err, want)
		}
	}
	book := startServers(t, 1, pserver.Config{})
	for want, m := range map[string]*pb.ParameterModel{
		"admission 3 without expiry":          {Tables: []*pb.ParameterTable{{Name: "rows", Dim: 1, Initialiser: params.Zeros, Admission: 3}}},
		`staleness policy "reject": expected`: {Staleness: &pb.StalenessBound{Policy: "reject", Limit: 3}},
	} {
		m.Tensors, m.Optimizer, m.Mode, m.Shards = []*pb.ParameterTensor{{Name: "b", Shape: []int64{2}}}, &pb.ParameterOptimizer{Kind: params.SGD, LearningRate: 1}, pb.UpdateMode_UPDATE_MODE_ASYNC, 1
		_, err := describe(t, book).InitParameters(within(t), &pb.InitParametersRequest{Model: m, Incarnation: 1})
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), want) {
			t.Errorf("the server answers %v, expected %q", err, want)
		}
	}
}
