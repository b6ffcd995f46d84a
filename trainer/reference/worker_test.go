package reference_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"trainmaster/dataset/convert"
	"trainmaster/etcdstore/etcdtest"
	"trainmaster/master"
	"trainmaster/master/mastertest"
	"trainmaster/recordio"
	"trainmaster/taskqueue"
	"trainmaster/trainer"
	"trainmaster/trainer/model"
	"trainmaster/trainer/reference"
)

// TestTrainersOfOneName: two trainers of one name end each other's sessions only until one of them ends with an
// error. The other trains to the end, and each task counts once.
func TestTrainersOfOneName(t *testing.T) {
	const passes = 20
	train, _ := digits(t)
	table := writeTable(t, train[:160], 20)
	r := mastertest.Start(t, etcdtest.Store(t), master.Config{ChunksPerTask: 1, Queue: taskqueue.Options{Passes: passes}})
	shards := startShards(t, 1)
	rival := func() *reference.Worker {
		return &reference.Worker{
			Trainer: trainer.Config{ID: "twin", Locate: trainer.At(r.Addr), Log: quiet()},
			Servers: func(context.Context) ([]string, error) { return shards, nil },
			Data:    []string{table.TaskChunks(0)[0].Path}, Kind: model.Softmax, Classes: 10, RecordDelay: time.Millisecond, Log: quiet(),
		}
	}
	ended := make(chan error)
	for range 2 {
		go func() { ended <- rival().Run(within(t)) }()
	}
	if err := <-ended; !errors.Is(err, reference.ErrRival) || !strings.Contains(err.Error(), `"twin"`) {
		t.Errorf("first trainer to end: expected the error of a second trainer with its name, got %v", err)
	}
	if err := <-ended; err != nil {
		t.Errorf("other trainer: got error %v", err)
	}
	if err := r.Wait(); err != nil {
		t.Error(err)
	}
	reports := mastertest.Verify(t, r.Store)
	if len(reports) != passes {
		t.Errorf("%d passes, want %d", len(reports), passes)
	}
	for _, p := range reports {
		if p.CountedOnce != table.Tasks() {
			t.Errorf("pass %d: %d tasks counted, want %d", p.Pass, p.CountedOnce, table.Tasks())
		}
	}
}

// A converted table of numbers describes itself: a trainer learns its three classes without settings.
func TestWorkerLearnsConvertedNumbers(t *testing.T) {
	var table strings.Builder
	random := rand.New(rand.NewPCG(1, 2))
	for i := range 300 {
		class := i % 3
		fmt.Fprintf(&table, "%.3f,%.6f,%d\n", 1e6+1000*(float64(class)+0.2*random.NormFloat64()), 1e-3*(float64(class*class)+0.3*random.NormFloat64()), class)
	}
	data, err := convert.CSV(t.Context(), strings.NewReader("weight,length,species\n"+table.String()), convert.Options{Prefix: filepath.Join(t.TempDir(), "t"), HeldOut: 0.3})
	if err != nil {
		t.Fatal(err)
	}
	r := mastertest.Start(t, etcdtest.Store(t), master.Config{ChunksPerTask: 1, Linger: time.Minute, Queue: taskqueue.Options{Passes: 20}})
	shards := startShards(t, 1)
	w := &reference.Worker{
		Trainer: trainer.Config{ID: "a", Locate: trainer.At(r.Addr), Log: quiet()},
		Servers: func(context.Context) ([]string, error) { return shards, nil },
		Data:    data.Train.Paths, Kind: model.Softmax, Log: quiet(), SavePath: filepath.Join(t.TempDir(), "model"),
	}
	if err := w.Run(within(t)); err != nil {
		t.Fatal(err)
	}
	saved, err := reference.ReadSaved(w.SavePath)
	if err != nil || saved.Config.Classes != 3 || saved.Config.Inputs != 2 {
		t.Fatalf("saved model: %+v, %v", saved.Config, err)
	}
	m, err := saved.Model()
	if err != nil {
		t.Fatal(err)
	}
	file, err := recordio.Open(data.Test.Paths[0])
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	e, err := reference.Evaluate(m, saved.Tensors, nil, file.Records())
	if err != nil || e.Records != 90 || e.Accuracy() < 0.95 {
		t.Errorf("accuracy %v of %d records, %v", e.Accuracy(), e.Records, err)
	}
}

// With fewer classes than the dataset, a model would fail task by task. The trainer refuses it at the start.
func TestWorkerRefusesTooFewClasses(t *testing.T) {
	for want, w := range map[string]*reference.Worker{
		"the dataset has 12 classes, the model softmax has 10: omit --classes, or start with --classes 12": {Kind: model.Softmax, Classes: 10},
		"found pixels: use --model softmax or --model mlp":                                                 {Kind: model.FM},
	} {
		data, err := convert.CSV(t.Context(), strings.NewReader("1,2,3\n3,2,11\n"), convert.Options{Prefix: filepath.Join(t.TempDir(), "t")})
		if err != nil {
			t.Fatal(err)
		}
		r := mastertest.Start(t, etcdtest.Store(t), master.Config{})
		w.Trainer = trainer.Config{ID: "a", Locate: trainer.At(r.Addr), Log: quiet()}
		w.Data, w.Log = data.Train.Paths, quiet()
		if err := w.Run(within(t)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got error %v, expected %q", err, want)
		}
	}
}

// TestSaverWithoutMasterReturnsError: a trainer that must save the model finds an ended job without a master. It returns an
// error unless another trainer saved the model.
func TestSaverWithoutMasterReturnsError(t *testing.T) {
	for name, saved := range map[string]bool{"not saved": false, "saved by another trainer": true} {
		t.Run(name, func(t *testing.T) {
			train, _ := digits(t)
			table := writeTable(t, train[:40], 20)
			r := mastertest.Start(t, etcdtest.Store(t), master.Config{ChunksPerTask: 1, Linger: time.Minute, Queue: taskqueue.Options{Passes: 1}})
			shards := startShards(t, 1)
			leader := trainer.NewFollow()
			leader.Set(r.Addr, 1)
			path := filepath.Join(t.TempDir(), "model")
			over := func() {
				if saved {
					if err := os.WriteFile(path, []byte("model of another trainer"), 0o600); err != nil {
						t.Error(err)
					}
				}
				leader.Set("", 0)
				leader.End(io.EOF)
			}
			w := &reference.Worker{
				Trainer: trainer.Config{ID: "a", Locate: leader, Log: quiet(), Answered: func(trainer.Answer) {
					if v, err := r.Overview(t.Context()); err == nil && v.Status == taskqueue.Ended {
						over()
					}
				}},
				Servers: func(context.Context) ([]string, error) { return shards, nil },
				Data:    []string{table.TaskChunks(0)[0].Path}, Kind: model.Softmax, Classes: 10, Log: quiet(), SavePath: path,
			}
			switch err := w.Run(within(t)); {
			case saved && err != nil:
				t.Error(err)
			case !saved && (err == nil || !strings.Contains(err.Error(), "model not saved by this trainer")):
				t.Errorf("got error %v", err)
			}
			content, err := os.ReadFile(path)
			if (err == nil) != saved || saved && string(content) != "model of another trainer" {
				t.Errorf("model: found %q, %v", content, err)
			}
		})
	}
}

// TestSavePath: a trainer that cannot save the model at the end returns an error before it joins. An existing file
// remains unchanged.
func TestSavePath(t *testing.T) {
	dir := t.TempDir()
	earlier := filepath.Join(dir, "earlier")
	if err := os.WriteFile(earlier, []byte("a model"), 0o600); err != nil {
		t.Fatal(err)
	}
	asked, cancel := context.WithCancel(t.Context())
	cancel() // the worker stops: a join ends without an error
	for _, test := range []struct{ path, want string }{
		{dir, "expected a regular file, found a directory"},
		{os.DevNull, "expected a regular file, found a device"},
		{filepath.Join(dir, "nowhere", "model"), "expected a writable directory"},
		{filepath.Join(earlier, "model"), "expected a writable directory"},
		{earlier, ""},
		{filepath.Join(dir, "model"), ""},
	} {
		w := &reference.Worker{Trainer: trainer.Config{ID: "a", Locate: trainer.NewFollow(), Log: quiet()}, SavePath: test.path, Log: quiet()}
		err := w.Run(asked)
		if test.want == "" {
			if err != nil {
				t.Errorf("save as %q: got error %v", test.path, err)
			}
		} else if err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), test.path) {
			t.Errorf("save as %q: got error %v, expected %q", test.path, err, test.want)
		}
	}
	found, err := os.ReadDir(dir)
	if err != nil || len(found) != 1 {
		t.Errorf("expected no other files, found %v, %v", found, err)
	}
	if content, err := os.ReadFile(earlier); err != nil || string(content) != "a model" {
		t.Errorf("earlier file: found %q, %v", content, err)
	}
}
