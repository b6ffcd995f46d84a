package reference_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"trainmaster/dataset/sample"
	"trainmaster/etcdstore/etcdtest"
	"trainmaster/pserver"
	"trainmaster/pserver/pservertest"
	"trainmaster/recordio"
	"trainmaster/taskqueue"
	"trainmaster/trainer/model"
	"trainmaster/trainer/params"
	"trainmaster/trainer/reference"
)

func TestMain(m *testing.M) { etcdtest.Main(m) }

// within returns a context that bounds the time of a test.
func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeoutCause(t.Context(), 2*time.Minute, errors.New("the test took more than two minutes"))
	t.Cleanup(cancel)
	return ctx
}

// digits returns the digits, divided by a seeded permutation into a held-out fifth and the rest.
func digits(t testing.TB) (train, heldOut [][]byte) {
	t.Helper()
	file, err := os.Open("../../testdata/digits.csv.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	unzipped, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	rows, err := csv.NewReader(unzipped).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	records := make([][]byte, len(rows))
	for i, fields := range rows {
		values := make([]byte, len(fields))
		for j, field := range fields {
			n, err := strconv.Atoi(field)
			if err != nil {
				t.Fatal(err)
			}
			values[j] = byte(n)
		}
		last := len(values) - 1
		records[i] = sample.Append(nil, sample.Sample{Label: int(values[last]), Scale: 1.0 / 16, Pixels: values[:last]})
	}
	random := rand.New(rand.NewPCG(1797, 0))
	random.Shuffle(len(records), func(i, j int) { records[i], records[j] = records[j], records[i] })
	return records[len(records)/5:], records[:len(records)/5]
}

// writeTable writes records to a RecordIO file and returns a table with one task a chunk. sizes are the numbers of
// records of the chunks; the last size repeats.
func writeTable(t testing.TB, records [][]byte, sizes ...int) *taskqueue.Table {
	t.Helper()
	var content bytes.Buffer
	writer := recordio.NewWriter(&content, recordio.WriterOptions{Compression: recordio.Snappy})
	room := sizes[0]
	for _, record := range records {
		if room == 0 {
			if err := writer.Flush(); err != nil {
				t.Fatal(err)
			}
			sizes = sizes[min(1, len(sizes)-1):]
			room = sizes[0]
		}
		if err := writer.Write(record); err != nil {
			t.Fatal(err)
		}
		room--
	}
	if err := writer.Close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "train-00000-of-00001")
	if err := os.WriteFile(path, content.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := recordio.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	index, err := file.Index()
	if err != nil {
		t.Fatal(err)
	}
	table := taskqueue.NewTable(len(index))
	if err := table.Add(taskqueue.File{Path: path, Size: file.Size()}, index); err != nil {
		t.Fatal(err)
	}
	return table
}

func quiet() *logrus.Entry {
	log := logrus.New()
	log.SetOutput(io.Discard)
	return logrus.NewEntry(log)
}

// startShards starts real parameter servers in this process and returns their addresses.
func startShards(t testing.TB, n int) []string {
	t.Helper()
	addresses, _ := pservertest.Start(t, n, pserver.Config{})
	return addresses
}

func connect(t testing.TB, addresses []string, link *trainerLink, mode params.Mode, recipe model.Recipe, dtype params.WireDType) *params.Client {
	t.Helper()
	optimizer := params.Optimizer{Kind: params.SGD, LearningRate: float32(recipe.LearningRate)}
	if recipe.Momentum > 0 {
		optimizer.Kind, optimizer.Momentum = params.Momentum, float32(recipe.Momentum)
	}
	client, err := params.Connect(within(t), params.Config{
		Addrs:       func(context.Context) ([]string, error) { return addresses, nil },
		Mode:        mode,
		Optimizer:   optimizer,
		Ordinal:     uint32(link.ordinal),
		Incarnation: link.incarnation,
		WireDType:   dtype,
		Log:         quiet(),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.Close(); err != nil {
			t.Errorf("close the link to the parameter servers: %v", err)
		}
	})
	return client
}

func newModel(t testing.TB, kind string, hidden int) model.Model {
	t.Helper()
	m, err := model.New(kind, model.Config{Inputs: 64, Classes: 10, Hidden: hidden, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// runAll runs trainers concurrently until all have ended.
func runAll(t testing.TB, trainers []*reference.Trainer) {
	t.Helper()
	ctx, cancel := context.WithCancel(within(t))
	defer cancel()
	var group sync.WaitGroup
	for _, trainer := range trainers {
		group.Go(func() {
			if err := trainer.Run(ctx); err != nil {
				t.Errorf("%s: %v", trainer.ID, err)
				cancel() // another trainer may wait for this trainer
			}
		})
	}
	group.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

func openJournal(t testing.TB, path string) *reference.Journal {
	t.Helper()
	journal, err := reference.OpenJournal(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := journal.Close(); err != nil {
			t.Error(err)
		}
	})
	return journal
}

func readJournal(t testing.TB, path string) []reference.Entry {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var entries []reference.Entry
	for line := range bytes.Lines(content) {
		var entry reference.Entry
		if err := json.Unmarshal(line, &entry); err != nil {
			t.Fatalf("journal line %q: %v", line, err)
		}
		entries = append(entries, entry)
	}
	return entries
}

// sequence yields records like a reader of a file.
func sequence(records [][]byte) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		for _, record := range records {
			if !yield(record, nil) {
				return
			}
		}
	}
}

// asModel returns tensors of a model that share the memory.
func asModel(tensors []params.Tensor) []model.Tensor {
	list := make([]model.Tensor, len(tensors))
	for i, tensor := range tensors {
		list[i] = model.Tensor(tensor)
	}
	return list
}
