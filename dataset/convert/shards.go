package convert

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"regexp"

	"trainmaster/dataset/sample"
	"trainmaster/recordio"
)

// samples is a dataset in memory.
type samples interface {
	len() int
	append(record []byte, i int) []byte // the record of sample i
	shape() (features, classes int)
}

// imageTable is a dataset of images: sample i has labels[i] and the i-th run of width pixels.
type imageTable struct {
	width  int
	pixels []byte
	labels []int
	scale  float32
}

func (t *imageTable) len() int                       { return len(t.labels) }
func (t *imageTable) shape() (features, classes int) { return t.width, classesOf(t.labels) }

func (t *imageTable) append(record []byte, i int) []byte {
	return sample.Append(record, sample.Sample{Label: t.labels[i], Scale: t.scale, Pixels: t.pixels[i*t.width:][:t.width]})
}

func classesOf(labels []int) int {
	classes := 0
	for _, label := range labels {
		classes = max(classes, label+1)
	}
	return classes
}

// write splits t and writes its shards.
func write(ctx context.Context, t samples, o Options) (Result, error) {
	n := t.len()
	if n == 0 {
		return Result{}, errors.New("the input has no samples")
	}
	held := int(math.Round(float64(n) * o.HeldOut))
	trainShards, testShards := max(o.Shards, 1), 0
	if o.HeldOut > 0 {
		testShards = max(1, int(math.Round(float64(trainShards)*o.HeldOut)))
	}
	if held < testShards || n-held < trainShards {
		return Result{}, fmt.Errorf("%d samples, %d of them held out, are too few for %d shards and %d test shards",
			n, held, trainShards, testShards)
	}
	w := shardWriter{ctx: ctx, samples: t, options: o, total: n}
	defer w.discard()
	order := permutation(n, o.Seed)
	var r Result
	var err error
	if r.Test, err = w.split(o.Prefix+"-test", order[:held], testShards); err != nil {
		return Result{}, err
	}
	if r.Train, err = w.split(o.Prefix, order[held:], trainShards); err != nil {
		return Result{}, err
	}
	r.Features, r.Classes = t.shape()
	return r, w.publish()
}

// shardWriter writes shards under temporary names until publish.
type shardWriter struct {
	ctx     context.Context
	samples samples
	options Options
	pending []pendingShard
	record  []byte
	done    int
	total   int
}

type pendingShard struct{ temporary, path string }

// split writes the samples of the given order to n shards.
func (w *shardWriter) split(prefix string, order []int, n int) (Split, error) {
	s := Split{Records: len(order), Paths: []string{}}
	if n == 0 {
		return s, nil
	}
	if err := refuseOthers(prefix, n); err != nil {
		return Split{}, err
	}
	if err := os.MkdirAll(filepath.Dir(prefix), 0o777); err != nil {
		return Split{}, err
	}
	for i := range n {
		path := fmt.Sprintf("%s-%05d-of-%05d", prefix, i, n)
		if err := w.shard(path, order[i*len(order)/n:(i+1)*len(order)/n]); err != nil {
			return Split{}, err
		}
		s.Paths = append(s.Paths, path)
	}
	return s, nil
}

func (w *shardWriter) shard(path string, order []int) error {
	temporary := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".tmp-"+rand.Text())
	file, err := os.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return err
	}
	w.pending = append(w.pending, pendingShard{temporary, path})
	if err := errors.Join(w.records(file, order), file.Close()); err != nil {
		return fmt.Errorf("write shard %s: %w", path, err)
	}
	return nil
}

func (w *shardWriter) records(file *os.File, order []int) error {
	out := recordio.NewWriter(file, w.options.writer())
	for _, i := range order {
		if w.ctx.Err() != nil {
			return context.Cause(w.ctx)
		}
		w.record = w.samples.append(w.record[:0], i)
		if err := out.Write(w.record); err != nil {
			return err
		}
		w.done++
		if w.options.Progress != nil {
			w.options.Progress(w.done, w.total)
		}
	}
	if err := out.Close(); err != nil {
		return err
	}
	return file.Sync()
}

// publish gives all shards their names.
func (w *shardWriter) publish() error {
	for len(w.pending) > 0 {
		if err := os.Rename(w.pending[0].temporary, w.pending[0].path); err != nil {
			return err
		}
		w.pending = w.pending[1:]
	}
	folder, err := os.Open(filepath.Dir(w.options.Prefix))
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}

// discard removes what was not published.
func (w *shardWriter) discard() {
	for _, p := range w.pending {
		os.Remove(p.temporary) // what cannot be removed is hidden and under a name that no glob of shards matches
	}
}

// refuseOthers looks for shards of prefix that are not of a set of n.
func refuseOthers(prefix string, n int) error {
	folder := filepath.Dir(prefix)
	entries, err := os.ReadDir(folder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	shard := regexp.MustCompile("^" + regexp.QuoteMeta(filepath.Base(prefix)) + `-\d{5}-of-(\d{5})$`)
	for _, entry := range entries {
		if m := shard.FindStringSubmatch(entry.Name()); m != nil && m[1] != fmt.Sprintf("%05d", n) {
			return fmt.Errorf("%s is of an earlier conversion into another number of shards, not %d: remove those first, or take another prefix",
				filepath.Join(folder, entry.Name()), n)
		}
	}
	return nil
}
