package reference_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/csv"
	"errors"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"trainmaster/dataset/sample"
	"trainmaster/internal/safetensors"
	"trainmaster/pserver/optimizer"
	"trainmaster/taskqueue"
	"trainmaster/testdata"
	"trainmaster/trainer/model"
	"trainmaster/trainer/params"
	"trainmaster/trainer/reference"
)

// flights returns records of the flights in the order of the file.
func flights(t testing.TB, n int) (records [][]byte) {
	t.Helper()
	unzipped, err := gzip.NewReader(bytes.NewReader(testdata.Flights))
	if err != nil {
		t.Fatal(err)
	}
	rows, err := csv.NewReader(unzipped).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	for _, fields := range rows[:n] {
		var c sample.Categorical
		last := len(fields) - 1
		for field, text := range fields[:last] {
			c.IDs = append(c.IDs, sample.CategoryID(field, text))
		}
		if delay, err := strconv.Atoi(fields[last]); err != nil {
			t.Fatal(err)
		} else if delay > 15 {
			c.Label = 1
		}
		records = append(records, sample.AppendCategorical(nil, c))
	}
	return records
}

// fmTables are the tables of the factorization machine model.
var fmTables = []params.Table{{Name: "weights", Dim: 1, Init: params.Zeros, Seed: 3}, {Name: "factors", Dim: 4, Init: params.Normal, Scale: 0.05, Seed: 3}}

// trainFM trains a factorization machine with one trainer and returns the saved model.
func trainFM(t *testing.T, records [][]byte, shards int, mode params.Mode, exchange reference.Exchange) reference.Saved {
	t.Helper()
	config := model.Config{Inputs: 4, Classes: 2, Rank: 4, Seed: 3}
	m, err := model.New(model.FM, config)
	if err != nil {
		t.Fatal(err)
	}
	c := newCoordinator(t, writeTable(t, records, 100), taskqueue.Options{Passes: 2})
	link := c.join("alone")
	addresses := startShards(t, shards)
	client, err := params.Connect(within(t), params.Config{
		Addrs: func(context.Context) ([]string, error) { return addresses, nil },
		Mode:  mode, Optimizer: params.Optimizer{Kind: optimizer.Adagrad, LearningRate: 0.05}, Tables: fmTables,
		Ordinal: uint32(link.ordinal), Incarnation: link.incarnation, Log: quiet(),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	trainer := &reference.Trainer{ID: "alone", Model: m, BatchSize: 32, Exchange: exchange, Tasks: link, Parameters: client, Rows: client}
	if mode == params.Sync {
		c.crowd = 1
		c.connect(addresses)
		trainer.Steps = link
	}
	runAll(t, []*reference.Trainer{trainer})
	saved := reference.Saved{Kind: model.FM, Config: config, Tensors: asModel(pull(t, client, m))}
	for _, table := range fmTables {
		s := reference.SavedTable{Table: table}
		if err := client.Scan(within(t), table.Name, func(ids []int64, values []float32) error {
			s.IDs, s.Rows = append(s.IDs, ids...), append(s.Rows, values...)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		saved.Tables = append(saved.Tables, s)
	}
	return saved
}

// contents returns the rows of a table by id.
func contents(s reference.SavedTable) map[int64][]float32 {
	rows := map[int64][]float32{}
	for i, id := range s.IDs {
		rows[id] = s.Rows[i*s.Dim : (i+1)*s.Dim]
	}
	return rows
}

// The factorization machine of one trainer has the same bits with any number of servers. It learns, and the saved
// model can be read.
func TestFactorizationMachineOnServers(t *testing.T) {
	records := flights(t, 4000)
	for name, c := range map[string]struct {
		mode     params.Mode
		exchange reference.Exchange
	}{
		"async":          {params.Async, reference.Exchange{}},
		"several pushed": {params.Async, reference.Exchange{PushEvery: 2, PullEvery: 4}},
		"sync":           {params.Sync, reference.Exchange{}},
	} {
		t.Run(name, func(t *testing.T) {
			one, three := trainFM(t, records, 1, c.mode, c.exchange), trainFM(t, records, 3, c.mode, c.exchange)
			if one.Tensors[0].Data[0] != three.Tensors[0].Data[0] || one.Tensors[0].Data[0] == 0 {
				t.Errorf("bias: found %v with one server, %v with three", one.Tensors[0].Data[0], three.Tensors[0].Data[0])
			}
			for i, table := range one.Tables {
				if mine, theirs := contents(table), contents(three.Tables[i]); !maps.EqualFunc(mine, theirs, slices.Equal) {
					t.Errorf("table %s: expected the same rows, found %d with one server, %d with three", table.Name, len(mine), len(theirs))
				}
			}
			path := filepath.Join(t.TempDir(), "fm.safetensors")
			if err := one.Write(path); err != nil {
				t.Fatal(err)
			}
			read, err := reference.ReadSaved(path)
			if err != nil {
				t.Fatal(err)
			}
			m, err := read.Model()
			if err != nil {
				t.Fatal(err)
			}
			before, err := reference.Evaluate(m, one.Tensors, one.RowsOf, sequence(records))
			if err != nil {
				t.Fatal(err)
			}
			after, err := reference.Evaluate(m, read.Tensors, read.RowsOf, sequence(records))
			if err != nil {
				t.Fatal(err)
			}
			if *before.AUC < 0.68 || *after.AUC != *before.AUC || after.LossSum != before.LossSum {
				t.Errorf("training records: area under the ROC curve %.4f, loss %v; of the read model %.4f, %v", *before.AUC, before.LossSum, *after.AUC, after.LossSum)
			}
		})
	}
}

// A category without records has the initial values of rows.
func TestRowOfAnUnseenCategory(t *testing.T) {
	m, err := model.New(model.FM, model.Config{Inputs: 1, Classes: 2, Rank: 4, Seed: 3})
	if err != nil {
		t.Fatal(err)
	}
	batch := m.NewBatch(1)
	if err := batch.AppendExample(sample.Categorical{IDs: []int64{12345}}); err != nil {
		t.Fatal(err)
	}
	saved := reference.Saved{Tables: []reference.SavedTable{{Table: fmTables[0]}, {Table: fmTables[1]}}}
	first := make([]float32, 4)
	fmTables[1].First(first, 12345)
	rows := saved.RowsOf(batch)
	if rows[0].Data[0] != 0 || !slices.Equal(rows[1].Data, first) || slices.Max(first) == 0 {
		t.Errorf("the rows are %v and %v, expected 0 and %v", rows[0].Data, rows[1].Data, first)
	}
}

// The ids of a saved model ascend, for any order of the servers, and its rows keep the initialization of the job.
func TestSavedTablesAreInOrder(t *testing.T) {
	config := model.Config{Inputs: 4, Classes: 2, Rank: 4, Seed: 3}
	saved := reference.Saved{Kind: model.FM, Config: config, Tensors: []model.Tensor{{Name: "bias", Shape: []int{1}, Data: []float32{0}}}, Tables: []reference.SavedTable{
		{Table: fmTables[0], IDs: []int64{7, -2, 5}, Rows: []float32{70, -20, 50}},
		{Table: params.Table{Name: "factors", Dim: 4, Init: params.Uniform, Scale: 0.125, Seed: 3}, IDs: []int64{9, 1}, Rows: []float32{91, 92, 93, 94, 11, 12, 13, 14}},
	}}
	path := filepath.Join(t.TempDir(), "fm.safetensors")
	if err := saved.Write(path); err != nil {
		t.Fatal(err)
	}
	read, err := reference.ReadSaved(path)
	if err != nil {
		t.Fatal(err)
	}
	for k, want := range [][]int64{{-2, 5, 7}, {1, 9}} {
		if table := read.Tables[k]; !slices.Equal(table.IDs, want) || !maps.EqualFunc(contents(table), contents(saved.Tables[k]), slices.Equal) {
			t.Errorf("table %s has the ids %v, expected %v with their rows", table.Name, table.IDs, want)
		}
	}
	if table := read.Tables[1].Table; table.Init != params.Uniform || table.Scale != 0.125 {
		t.Errorf("rows of %s start as %s %v, expected %s 0.125", table.Name, table.Init, table.Scale, params.Uniform)
	}

	// Models of earlier versions have no initialization of rows: it is uniform in [-0.05, 0.05).
	tensors, metadata, err := safetensors.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	delete(metadata, "factors.init")
	delete(metadata, "weights.init")
	if err := safetensors.WriteFile(path, tensors, metadata); err != nil {
		t.Fatal(err)
	}
	if read, err = reference.ReadSaved(path); err != nil || read.Tables[1].Init != params.Uniform || read.Tables[1].Scale != 0.05 || read.Tables[0].Init != params.Zeros {
		t.Errorf("found %+v (%v), expected rows that start uniformly in [-0.05, 0.05)", read.Tables, err)
	}
}

func TestReadSavedNamesAnExportedModel(t *testing.T) {
	path := filepath.Join(t.TempDir(), "exported.safetensors")
	for _, metadata := range []map[string]string{nil, {"format": "pt"}} {
		if err := safetensors.WriteFile(path, []safetensors.Tensor{safetensors.FromFloat32("w", []int{1}, []float32{1})}, metadata); err != nil {
			t.Fatal(err)
		}
		if _, err := reference.ReadSaved(path); !errors.Is(err, reference.ErrNotSaved) || !strings.Contains(err.Error(), "pass the file that the run saved") {
			t.Errorf("found %v, expected ErrNotSaved", err)
		}
	}
}

func TestTablesNeedServers(t *testing.T) {
	m, err := model.New(model.FM, model.Config{Inputs: 1, Classes: 2, Rank: 4})
	if err != nil {
		t.Fatal(err)
	}
	trainer := &reference.Trainer{Model: m, BatchSize: 1, Tasks: &trainerLink{}, Parameters: &shelf{}}
	if err := trainer.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "Rows is nil") {
		t.Errorf("error %v", err)
	}
}
