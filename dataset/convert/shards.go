package convert

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"trainmaster/dataset/sample"
	"trainmaster/dataset/tfrecord"
	"trainmaster/recordio"
)

// samples is a dataset in memory.
type samples interface {
	len() int
	shape() Result                                            // without splits
	fit(train []int)                                          // learns from the samples to train on how features are scaled
	append(record []byte, i int, classes int) ([]byte, error) // the record of sample i
}

// imageTable is a dataset of pixels: sample i has labels[i] and the i-th run of width pixels.
type imageTable struct {
	width  int
	pixels []byte
	labels []int
	scale  float32
	origin
}

func (t *imageTable) len() int  { return len(t.labels) }
func (t *imageTable) fit([]int) {}

func (t *imageTable) shape() Result {
	r := t.result(sample.Pixels, t.width, t.labels)
	r.Scale = t.scale
	return r
}

func (t *imageTable) append(record []byte, i, classes int) ([]byte, error) {
	return sample.Append(record, sample.Sample{Label: t.labels[i], Classes: classes, Scale: t.scale, Pixels: t.pixels[i*t.width:][:t.width]}), nil
}

// write splits t and writes its shards.
func write(ctx context.Context, t samples, o Options) (Result, error) {
	n := t.len()
	if n == 0 {
		return Result{}, errNoSamples
	}
	if err := o.check(t.shape()); err != nil {
		return Result{}, err
	}
	heldOutRecords := int(math.Round(float64(n) * o.HeldOut))
	trainShards, testShards := max(o.Shards, 1), 0
	if o.HeldOut > 0 {
		testShards = max(1, int(math.Round(float64(trainShards)*o.HeldOut)))
	}
	if heldOutRecords < testShards || n-heldOutRecords < trainShards {
		return Result{}, fmt.Errorf("%d samples, %d of them held out, are too few for %d shards and %d test shards",
			n, heldOutRecords, trainShards, testShards)
	}
	order := permutation(n, o.Seed)
	t.fit(order[heldOutRecords:])
	r := t.shape()
	if o.like != nil {
		r.Classes = o.like.Classes
	}
	w := shardWriter{ctx: ctx, samples: t, options: o, classes: r.Classes, total: n}
	defer w.discard()
	var err error
	if r.Test, err = w.split(o.Prefix+"-test", order[:heldOutRecords], testShards); err != nil {
		return Result{}, err
	}
	if r.Train, err = w.split(o.Prefix, order[heldOutRecords:], trainShards); err != nil {
		return Result{}, err
	}
	if err := w.describe(r); err != nil {
		return Result{}, err
	}
	return r, w.publish()
}

// shardWriter writes shards under temporary names until publish.
type shardWriter struct {
	ctx     context.Context
	samples samples
	options Options
	classes int
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
		return Split{}, recordio.OpenError(prefix, err)
	}
	options := w.options.writer(len(order), n)
	for i := range n {
		path := fmt.Sprintf("%s-%05d-of-%05d", prefix, i, n)
		chunks := 0
		if err := w.file(path, func(file *os.File) (err error) {
			chunks, err = w.records(file, order[i*len(order)/n:(i+1)*len(order)/n], options)
			return err
		}); err != nil {
			return Split{}, err
		}
		s.Paths = append(s.Paths, path)
		s.Chunks += chunks
	}
	return s, nil
}

// file writes a file under a temporary name.
func (w *shardWriter) file(path string, fill func(*os.File) error) error {
	temporary := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".tmp-"+rand.Text())
	file, err := os.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		if cause, ok := errors.AsType[*fs.PathError](err); ok {
			err = cause.Err // without the temporary name
		}
		return fmt.Errorf("write %s: create a file in %s: %w", path, filepath.Dir(path), err)
	}
	w.pending = append(w.pending, pendingShard{temporary, path})
	if err := errors.Join(fill(file), file.Close()); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// recordWriter writes a shard in one of the formats.
type recordWriter interface {
	Write(record []byte) error
	Close() error
}

// records writes a shard and returns the number of its chunks.
func (w *shardWriter) records(file *os.File, order []int, options recordio.WriterOptions) (chunks int, err error) {
	var out recordWriter = recordio.NewWriter(chunkCounter{file, &chunks}, options)
	if w.options.ShardFormat == ShardTFRecord {
		compression := tfrecord.None
		if options.Compression == recordio.Gzip {
			compression = tfrecord.Gzip
		}
		out = tfrecord.NewWriter(file, compression)
	}
	for _, i := range order {
		if w.ctx.Err() != nil {
			return 0, context.Cause(w.ctx)
		}
		if w.record, err = w.samples.append(w.record[:0], i, w.classes); err != nil {
			return 0, err
		}
		if err := out.Write(w.record); err != nil {
			return 0, err
		}
		w.done++
		if w.options.Progress != nil {
			w.options.Progress(w.done, w.total)
		}
	}
	if err := out.Close(); err != nil {
		return 0, err
	}
	if w.options.ShardFormat == ShardTFRecord {
		if chunks, err = countChunks(w.ctx, file.Name()); err != nil {
			return 0, err
		}
	}
	return chunks, file.Sync()
}

// countChunks returns the number of chunks that an index makes of a TFRecord file.
func countChunks(ctx context.Context, path string) (int, error) {
	file, err := tfrecord.Open(path)
	if err != nil {
		return 0, err
	}
	index, err := file.Index(ctx, tfrecord.IndexOptions{})
	return len(index), errors.Join(err, file.Close())
}

// chunkCounter counts the writes of a recordio.Writer, one for each chunk.
type chunkCounter struct {
	io.Writer
	chunks *int
}

func (c chunkCounter) Write(p []byte) (int, error) {
	*c.chunks++
	return c.Writer.Write(p)
}

// publish gives all shards their names.
func (w *shardWriter) publish() error {
	if w.options.Repeat {
		if err := w.dropPublished(); err != nil {
			return err
		}
	}
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

// dropPublished removes the new files whose content is published. The published files remain as they are, since a job may read them.
func (w *shardWriter) dropPublished() error {
	var missing []pendingShard
	for _, p := range w.pending {
		published, err := os.ReadFile(p.path)
		if errors.Is(err, fs.ErrNotExist) {
			missing = append(missing, p)
			continue
		}
		if err != nil {
			return err
		}
		content, err := os.ReadFile(p.temporary)
		if err != nil {
			return err
		}
		if !bytes.Equal(content, published) {
			return fmt.Errorf("%s: expected no file, or the content that this conversion writes, found other content: remove it, or take another prefix", p.path)
		}
	}
	for _, p := range w.pending {
		if !slices.Contains(missing, p) {
			if err := os.Remove(p.temporary); err != nil {
				return err
			}
		}
	}
	w.pending = missing
	return nil
}

// discard removes unpublished files.
func (w *shardWriter) discard() {
	for _, p := range w.pending {
		os.Remove(p.temporary) // a file that cannot be removed is hidden and under a name that no glob of shards matches
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
		return recordio.OpenError(prefix, err)
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
