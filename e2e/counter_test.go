package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"trainmaster/dataset/sample"
	"trainmaster/etcdstore"
	"trainmaster/internal/safetensors"
	"trainmaster/recordio"
	"trainmaster/taskqueue"
	"trainmaster/trainer"
	"trainmaster/trainer/model"
	"trainmaster/trainer/params"
	"trainmaster/trainer/reference"
)

// A counter is a trainer whose model has a parameter for each record of the dataset. Each training
// of the record adds 1 to the parameter. A counter runs this test binary in its own process, so
// that a test can kill it.

// counterEnv is the variable with the settings of a counter: endpoint, job, id and file, separated by spaces.
const counterEnv = "E2E_COUNTER"

const (
	countedRecords = 480
	countedChunk   = 16 // records in a chunk; a task is a chunk
	countedTensors = 4  // enough for several servers
	countedBatch   = 4
)

// counting is a model that counts records, each in an element of a tensor and in a row of a table. Its gradients are so large
// that the servers clip them to 1 for any number of records in a step. With a learning rate of 1, each step adds 1.
type counting struct{ model.Model }

func newCounting() (counting, error) {
	m, err := model.New(model.FM, model.Config{Inputs: 1, Classes: 2, Rank: 1})
	return counting{m}, err
}

// countedTable has a row for each record.
const countedTable = "rows"

func (counting) Tables() []model.Table { return []model.Table{{Name: countedTable, Dim: 1}} }

func (counting) Parameters() (list []model.Tensor) {
	for i := range countedTensors {
		list = append(list, model.Tensor{Name: fmt.Sprintf("count%d", i), Shape: []int{countedRecords / countedTensors}, Data: make([]float32, countedRecords/countedTensors)})
	}
	return list
}

func (counting) Gradients(_ []model.Tensor, batch *model.Batch, gradients []model.Tensor) (float64, error) {
	for _, g := range gradients {
		clear(g.Data)
	}
	for i, id := range batch.Categories() {
		gradients[id%countedTensors].Data[id/countedTensors] = -1e6
		gradients[countedTensors].Data[i] = -1e6 // of the row
	}
	return 0, nil
}

// delayedTasks adds a pause before each record. The pause is longer while the file slow exists.
type delayedTasks struct {
	*trainer.Client
	slow string
}

// Pauses before each record.
const (
	fastRecord = time.Millisecond
	slowRecord = 20 * time.Millisecond
)

func (s delayedTasks) Records(task *taskqueue.Task) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		for record, err := range s.Client.Records(task) {
			pause := fastRecord
			if _, err := os.Stat(s.slow); err == nil {
				pause = slowRecord
			}
			// Simulates the work on a record, so that a test can inject faults during a task.
			time.Sleep(pause)
			if !yield(record, err) {
				return
			}
		}
	}
}

// count runs a counter until the job ends.
func count(settings string) error {
	var endpoint, job, id, file string
	if _, err := fmt.Sscan(settings, &endpoint, &job, &id, &file); err != nil {
		return err
	}
	ctx := context.Background()
	log := logrus.NewEntry(logrus.StandardLogger())
	store, err := etcdstore.Open(ctx, etcdstore.Config{Endpoints: []string{endpoint}, Job: job})
	if err != nil {
		return err
	}
	defer store.Close()
	follow := trainer.NewFollow()
	go func() {
		for a := range store.WatchMasterAddr(ctx) {
			follow.Set(a.Addr, a.Term)
		}
	}()
	for {
		err := countOnce(ctx, store, trainer.Config{ID: id, Locate: follow, Log: log}, file)
		switch {
		case errors.Is(err, trainer.ErrSessionLost), errors.Is(err, trainer.ErrRolledBack), errors.Is(err, params.ErrRolledBack), errors.Is(err, params.ErrUninitialized):
			log.WithError(err).Info("joining again")
		case errors.Is(err, io.EOF):
			return nil
		default:
			return err
		}
	}
}

func countOnce(ctx context.Context, store *etcdstore.Store, config trainer.Config, file string) error {
	client, err := trainer.Join(ctx, config)
	if err != nil {
		return err
	}
	defer client.Close() //nolint:errcheck // the master may be gone
	ctx, release := client.UntilFailed(ctx)
	defer release()
	if err := client.ReportDataset(ctx, []string{file}); err != nil {
		return err
	}
	if client.Explicit() && !client.Cuts() {
		return countInRing(ctx, client, file)
	}
	mode := params.Async
	if client.Sync() {
		mode = params.Sync
	}
	servers, err := params.Connect(ctx, params.Config{
		Addrs: func(ctx context.Context) ([]string, error) { return store.WaitPS(ctx, nil) },
		Mode:  mode, Optimizer: params.Optimizer{Kind: params.SGD, LearningRate: 1, ClipValue: 1},
		Ordinal: uint32(client.Ordinal()), Incarnation: client.Incarnation(), JobEpoch: client.Epoch(), Log: config.Log,
		Tables: []params.Table{{Name: countedTable, Dim: 1, Init: params.Zeros}},
	})
	if err != nil {
		return err
	}
	defer servers.Close() //nolint:errcheck // no request is in progress
	m, err := newCounting()
	if err != nil {
		return err
	}
	t := reference.Trainer{ID: config.ID, Model: m, BatchSize: countedBatch, Tasks: delayedTasks{client, slowFile(file)}, Parameters: servers, Rows: servers}
	if client.Sync() {
		t.Steps = client
	}
	if client.Cuts() {
		t.Cuts = client
	}
	return t.Run(ctx)
}

func slowFile(file string) string { return file + ".slow" }

// counters is a job whose records contain their own indices. Its trainers are slow until hurry, so that the job lasts until
// all faults are injected.
type counters struct {
	*job
	file string
}

func newCounters(t *testing.T) counters {
	t.Helper()
	c := counters{newJob(t), ""}
	c.file = filepath.Join(c.dir, "numbers.recordio")
	var b bytes.Buffer
	w := recordio.NewWriter(&b, recordio.WriterOptions{RecordsPerChunk: countedChunk})
	for i := range countedRecords {
		if err := w.Write(sample.AppendCategorical(nil, sample.Categorical{IDs: []int64{int64(i)}})); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{c.file: b.Bytes(), slowFile(c.file): nil} {
		if err := os.WriteFile(name, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// hurry makes the trainers fast, after all faults were injected.
func (c counters) hurry() {
	c.t.Helper()
	if err := os.Remove(slowFile(c.file)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		c.t.Fatal(err)
	}
}

func (c counters) counter(id string) *process {
	c.t.Helper()
	self, err := os.Executable()
	if err != nil {
		c.t.Fatal(err)
	}
	if _, err := exec.LookPath("env"); err != nil {
		c.t.Fatal(err)
	}
	return startBy(c.t, []string{"env", counterEnv + "=" + strings.Join([]string{c.endpoint, c.name, id, c.file}, " "), self}, id, c.dir)
}

// wantCounted fails the test unless each record was trained once per pass.
func (c counters) wantCounted(passes int) {
	c.t.Helper()
	c.wantCounts(fmt.Sprintf("%d times", passes), func(v float32) bool { return v == float32(passes) })
}

// wantCountedAtLeast fails the test unless each record was trained at least once per pass.
func (c counters) wantCountedAtLeast(passes int) {
	c.t.Helper()
	c.wantCounts(fmt.Sprintf("at least %d times", passes), func(v float32) bool { return v >= float32(passes) })
}

func (c counters) wantCounts(what string, ok func(float32) bool) {
	c.t.Helper()
	set := c.latestSet()
	path := filepath.Join(c.t.TempDir(), "model.safetensors")
	run(c.t, c.dir, "model", "export", c.setArg(set.Number), "--file", path).wants(c.t, 0)
	tensors, _, err := safetensors.ReadFile(path)
	if err != nil {
		c.t.Fatal(err)
	}
	records, wrong := 0, 0
	for _, tensor := range tensors {
		if tensor.Name == countedTable+".ids" {
			continue // 0 to countedRecords-1, if the number of rows is right
		}
		values, err := tensor.Float32()
		if err != nil {
			c.t.Fatal(err)
		}
		records += len(values)
		for i, v := range values {
			if !ok(v) {
				if wrong++; wrong <= 10 {
					c.t.Errorf("%s[%d]: trained %v times, expected %s", tensor.Name, i, v, what)
				}
			}
		}
	}
	if expected := 2 * countedRecords; records != expected || wrong > 0 {
		c.t.Errorf("%d of %d elements and rows were not trained %s; expected %d for the %d records", wrong, records, what, expected, countedRecords)
	}
}
