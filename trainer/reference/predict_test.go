package reference

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"trainmaster/dataset/sample"
	"trainmaster/recordio"
	"trainmaster/taskqueue"
	"trainmaster/trainer/model"
)

// listed are tasks with the same records, and the parts that are stored. It implements Tasks and Parts.
type listed struct {
	t       *testing.T
	left    int
	records [][]byte
	parts   map[string][]byte
	failed  []string
	refuse  error // of Write
}

func (l *listed) Next(_ context.Context, finished *taskqueue.Task) (*taskqueue.Task, error) {
	if finished != nil && l.parts[PartName(finished)] == nil {
		l.t.Errorf("task %d is reported as finished without its part", finished.Index)
	}
	if l.left == 0 {
		return nil, io.EOF
	}
	l.left--
	return &taskqueue.Task{Index: l.left, Token: taskqueue.Token{Kind: taskqueue.Prediction}}, nil
}

func (l *listed) Fail(_ context.Context, _ *taskqueue.Task, reason error) error {
	l.failed = append(l.failed, reason.Error())
	return nil
}

func (l *listed) Records(*taskqueue.Task) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		for _, record := range l.records {
			if !yield(record, nil) {
				return
			}
		}
	}
}

func (l *listed) Write(_ context.Context, name string, content []byte) error {
	if l.refuse == nil {
		l.parts[name] = content
	}
	return l.refuse
}

// predictedBy returns the elements of a part.
func predictedBy(t *testing.T, part []byte) (list []Predicted) {
	t.Helper()
	for record, err := range recordio.NewFile(bytes.NewReader(part), int64(len(part)), "part").Records() {
		if err != nil {
			t.Fatal(err)
		}
		var p Predicted
		if err := json.Unmarshal(record, &p); err != nil {
			t.Fatal(err)
		}
		list = append(list, p)
	}
	return list
}

// F243: each task has its part before its finish is sent. The predictions are in the order of the records, and as often correct as the
// evaluation finds.
func TestPredictionsOfEachModel(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for kind, c := range map[string]model.Config{
		model.Softmax: {Inputs: 9, Classes: 4}, model.MLP: {Inputs: 9, Classes: 4, Hidden: 5}, model.Logistic: {Inputs: 3, Classes: 2}, model.FM: {Inputs: 3, Classes: 2, Rank: 2},
	} {
		m, err := model.New(kind, c)
		if err != nil {
			t.Fatal(err)
		}
		l := &listed{t: t, left: 2, parts: map[string][]byte{}}
		var labels []int
		for range 700 {
			label := random.IntN(c.Classes)
			labels = append(labels, label)
			if model.OfCategories(kind) {
				l.records = append(l.records, sample.AppendCategorical(nil, sample.Categorical{Label: label, IDs: []int64{random.Int64N(50), random.Int64N(50), random.Int64N(50)}}))
				continue
			}
			pixels := make([]byte, c.Inputs)
			for i := range pixels {
				pixels[i] = byte(random.IntN(256))
			}
			l.records = append(l.records, sample.Append(nil, sample.Sample{Label: label, Scale: 1.0 / 255, Pixels: pixels}))
		}
		parameters := m.Parameters()
		rowsOf := func(batch *model.Batch) []model.Tensor { // rows that differ by id
			rows := model.ZerosLike(model.Rows(m.Tables(), batch))
			for k, table := range m.Tables() {
				for i, id := range batch.Categories() {
					for j := range table.Dim {
						rows[k].Data[i*table.Dim+j] = float32(math.Sin(float64(id*7 + int64(j))))
					}
				}
			}
			return rows
		}
		p := predictor{model: m, tasks: l, parts: l, tensorsOf: func(batch *model.Batch) ([]model.Tensor, error) { return all(parameters, rowsOf(batch)), nil }}
		if err := p.run(t.Context()); err != nil {
			t.Fatal(err)
		}
		if len(l.parts) != 2 || !bytes.Equal(l.parts["part-00000000"], l.parts["part-00000001"]) {
			t.Errorf("%s: found %d parts, expected two equal ones", kind, len(l.parts))
		}
		list, correct := predictedBy(t, l.parts["part-00000000"]), 0
		if len(list) != len(labels) {
			t.Fatalf("%s: found %d predictions of %d records", kind, len(list), len(labels))
		}
		for i, found := range list {
			sum := float32(0)
			for _, v := range found.Probabilities {
				sum += v
			}
			if len(found.Probabilities) != c.Classes || math.Abs(float64(sum)-1) > 1e-5 {
				t.Fatalf("%s: record %d: found %v", kind, i, found)
			}
			if found.Label == labels[i] {
				correct++
			}
		}
		e, err := Evaluate(m, parameters, rowsOf, l.Records(nil))
		if err != nil || e.Correct != correct || correct == 0 || correct == len(labels) {
			t.Errorf("%s: %d predictions are correct, the evaluation finds %d, %v", kind, correct, e.Correct, err)
		}
	}
}

// A record that does not fit fails its task, and so does a model with NaN. If a part cannot be stored, the trainer ends without the finish.
func TestTasksWithoutPredictions(t *testing.T) {
	m, err := model.New(model.Softmax, model.Config{Inputs: 2, Classes: 2})
	if err != nil {
		t.Fatal(err)
	}
	record := sample.Append(nil, sample.Sample{Label: 1, Scale: 1, Pixels: []byte{1, 2}})
	for name, c := range map[string]struct {
		records [][]byte
		nan     bool
		refuse  error
		want    string
	}{
		"record": {records: [][]byte{record, []byte("text")}, want: "record 1 of the task"},
		"NaN":    {records: [][]byte{record}, nan: true, want: "a probability is not a number"},
		"part":   {records: [][]byte{record}, refuse: errors.New("disk full"), want: "predict task 0: disk full"},
	} {
		parameters := m.Parameters()
		if c.nan {
			parameters[0].Data[0] = float32(math.NaN())
		}
		l := &listed{t: t, left: 1, records: c.records, parts: map[string][]byte{}, refuse: c.refuse}
		p := predictor{model: m, tasks: l, parts: l, tensorsOf: func(*model.Batch) ([]model.Tensor, error) { return parameters, nil }}
		err := p.run(t.Context())
		if found := fmt.Sprint(err, l.failed); !strings.Contains(found, c.want) || len(l.parts) > 0 || (err == nil) != (c.refuse == nil) {
			t.Errorf("%s: found %s and %d parts, expected %q and no part", name, found, len(l.parts), c.want)
		}
	}
}
