package checkpoint

import (
	"context"
	"errors"
	"path"
	"time"

	"trainmaster/internal/safetensors"
)

// Writer writes one checkpoint: its files, then the manifest that names them.
type Writer struct {
	// Worked (may be nil) is called after each slice of data, with its bytes and duration. It can sleep to slow the writer down.
	Worked func(bytes int, took time.Duration)

	folder     Folder
	dir        string
	create     func(dir, name string, size int64, kind Kind) (*file, error)
	generation Generation
	files      []*File
	own        Segment // the files of the checkpoint's directory
	segments   []*Segment
	rows       []Rows
	size       int64
}

// Begin creates the directory of a checkpoint. Finish or Abandon must follow. The files are written with ctx.
func (f Folder) Begin(ctx context.Context, g Generation) (*Writer, error) {
	w := &Writer{folder: f, dir: f.path(g), generation: g, own: Segment{Name: g.String()}}
	w.create = func(dir, name string, size int64, kind Kind) (*file, error) {
		return createFile(ctx, f.place, path.Join(f.name, dir), name, size, kind)
	}
	if err := f.place.Claim(ctx, w.dir); err != nil {
		return nil, err
	}
	f.Points.Observe("directory made")
	return w, nil
}

// File is a safetensors file of the checkpoint that is being written: the data
// of its tensors, in order.
type File struct {
	*safetensors.Writer
	out *file
	in  *Segment
}

// headerRoom is the approximate size of a file's header.
const headerRoom = 64 << 10

// Create starts a file. Files of one checkpoint can be written in parallel.
func (w *Writer) Create(name string, infos []safetensors.Info, metadata map[string]string) (*File, error) {
	return w.createIn(&w.own, name, infos, metadata)
}

func (w *Writer) createIn(in *Segment, name string, infos []safetensors.Info, metadata map[string]string) (*File, error) {
	size := int64(headerRoom)
	for _, i := range infos {
		n, err := i.Bytes()
		if err != nil {
			return nil, err
		}
		size += n
	}
	out, err := w.create(in.Name, name, size, Replaced)
	if err != nil {
		return nil, err
	}
	out.worked = w.Worked
	f := &File{out: out, in: in}
	w.files = append(w.files, f)
	f.Writer, err = safetensors.NewWriter(out, infos, metadata)
	return f, err
}

// CreateSlots begins the files of an optimizer's state, one for each slot; an empty
// one for a rule that keeps none.
func (w *Writer) CreateSlots(share Share, slots []string, metadata map[string]string) ([]*File, error) {
	files := make([]*File, max(1, len(slots)))
	for i := range files {
		var infos []safetensors.Info
		if i < len(slots) {
			infos = share.Tensors("." + slots[i])
		}
		var err error
		if files[i], err = w.Create(SlotFile(i), infos, metadata); err != nil {
			return nil, err
		}
	}
	return files, nil
}

// small writes a file that is in memory.
func (w *Writer) small(in *Segment, name string, tensors []safetensors.Tensor, metadata map[string]string) error {
	infos := make([]safetensors.Info, len(tensors))
	for i, t := range tensors {
		infos[i] = t.Info
	}
	f, err := w.createIn(in, name, infos, metadata)
	if err != nil {
		return err
	}
	for _, t := range tensors {
		if _, err := f.Write(t.Data); err != nil {
			return err
		}
	}
	return nil
}

// publish gives the files their names, in the order in which they were begun.
func (w *Writer) publish() error {
	for _, f := range w.files {
		if err := f.Writer.Close(); err != nil {
			return err
		}
		e, err := f.out.entry()
		if err != nil {
			return err
		}
		f.in.Files = append(f.in.Files, e)
		w.size += e.Size
		w.folder.Points.Observe(e.Name + " published")
	}
	dirs := []string{w.dir}
	for _, s := range w.segments {
		dirs = append(dirs, path.Join(w.folder.name, s.Name))
	}
	if len(w.segments) > 0 {
		dirs = append(dirs, w.folder.name)
	}
	for _, dir := range dirs {
		if err := w.folder.place.Sync(dir); err != nil {
			return err
		}
	}
	w.folder.Points.Observe("directory synced")
	return nil
}

// Finish publishes the files and the manifest, and returns their size and the SHA-256 of the manifest file. The error is
// [ErrSuperseded] if a later start owns the directory.
func (w *Writer) Finish(ctx context.Context, m *Manifest) (size int64, sum string, err error) {
	if err := w.publish(); err != nil {
		return 0, "", err
	}
	m.Generation, m.Files, m.Rows = w.generation, w.own.Files, w.rows
	text, err := seal(m)
	if err != nil {
		return 0, "", err
	}
	f, err := w.create(w.own.Name, ManifestFile, int64(len(text)), Final)
	if err != nil {
		return 0, "", err
	}
	defer f.Close()
	if _, err := f.Write(text); err != nil {
		return 0, "", err
	}
	w.folder.Points.Observe("manifest written")
	if err := w.folder.CheckOwner(ctx, w.generation.Start); err != nil {
		return 0, "", err
	}
	if err := f.Publish(); err != nil {
		return 0, "", err
	}
	w.folder.Points.Observe("manifest renamed")
	if err := w.folder.place.Sync(w.dir); err != nil {
		return 0, "", err
	}
	w.folder.Points.Observe("manifest synced")
	if err := w.folder.place.Sync(w.folder.name); err != nil {
		return 0, "", err
	}
	w.folder.Points.Observe("parent synced")
	return w.size, digest(text), nil
}

// Abandon removes the unfinished checkpoint. If the place is unreachable, it removes nothing, to avoid a second wait.
func (w *Writer) Abandon(ctx context.Context, why error) {
	for _, f := range w.files {
		f.out.Close()
	}
	if errors.Is(why, ErrUnavailable) {
		return
	}
	//guard:failed-checkpoint-removed
	w.folder.place.RemoveAll(ctx, w.dir) //nolint:errcheck // what stays has no manifest, and is pruned
	for _, s := range w.segments {
		w.folder.place.RemoveAll(ctx, path.Join(w.folder.name, s.Name)) //nolint:errcheck // as above
	}
}
