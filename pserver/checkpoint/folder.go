package checkpoint

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

const startsFile = "STARTS"

// ErrSuperseded: a later start of the shard has taken the folder over.
var ErrSuperseded = errors.New("the checkpoint folder was taken over by a later start of this shard")

// Folder has the checkpoints of one shard.
type Folder struct {
	Path string
	// Step (may be nil) is called after each thing that changes the disk; tests die there.
	Step func(what string)
}

func (f Folder) did(what string) {
	if f.Step != nil {
		f.Step(what)
	}
}

func (f Folder) path(g Generation) string { return filepath.Join(f.Path, g.String()) }

// Generations lists the checkpoints, whole or not, the newest first.
func (f Folder) Generations() ([]Generation, error) {
	entries, err := os.ReadDir(f.Path)
	if err != nil {
		return nil, err
	}
	var list []Generation
	for _, e := range entries {
		if g, ok := parseGeneration(e.Name()); ok && e.IsDir() {
			list = append(list, g)
		}
	}
	slices.SortFunc(list, func(a, b Generation) int { return b.Compare(a) })
	return list, nil
}

// Whole says whether a checkpoint was finished; its files may be damaged.
func (f Folder) Whole(g Generation) bool {
	_, err := os.Stat(filepath.Join(f.path(g), ManifestFile))
	return !errors.Is(err, fs.ErrNotExist)
}

// resumedFile stands beside a checkpoint from which this shard alone went on.
const resumedFile = "RESUMED"

// Resume notes that the shard goes on from a checkpoint while others never stopped.
func (f Folder) Resume(g Generation) error {
	out, err := createFile(f.path(g), resumedFile)
	if err != nil {
		return err
	}
	defer out.Close()
	if _, err := out.publish(); err != nil {
		return err
	}
	return syncFolder(f.path(g))
}

func (f Folder) resumed(g Generation) bool {
	_, err := os.Stat(filepath.Join(f.path(g), resumedFile))
	return !errors.Is(err, fs.ErrNotExist)
}

// CountStart adds one to the number of starts, and returns it when it is on the disk.
func (f Folder) CountStart() (uint64, error) {
	starts, err := f.starts()
	if err != nil {
		return 0, err
	}
	list, err := f.Generations()
	if err != nil {
		return 0, err
	}
	if len(list) > 0 {
		starts = max(starts, list[0].Start) // the file may be lost, and they are not
	}
	starts++
	out, err := createFile(f.Path, startsFile)
	if err != nil {
		return 0, err
	}
	defer out.Close()
	if _, err := fmt.Fprintln(out, starts); err != nil {
		return 0, err
	}
	if _, err := out.publish(); err != nil {
		return 0, err
	}
	return starts, syncFolder(f.Path)
}

func (f Folder) starts() (uint64, error) {
	path := filepath.Join(f.Path, startsFile)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	} else if err != nil {
		return 0, err
	}
	starts, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s holds %q: expected the number of starts; if the file was damaged, write a number greater than any that the folder names beside it start with", path, text)
	}
	return starts, nil
}

// Remove removes a checkpoint, the manifest first, so that no half-removed one
// is taken for whole.
func (f Folder) Remove(g Generation) error {
	dir := f.path(g)
	if f.Whole(g) {
		if err := os.Remove(filepath.Join(dir, ManifestFile)); err != nil {
			return err
		}
		if err := syncFolder(dir); err != nil {
			return err
		}
		f.did("old manifest removed")
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	f.did("old folder removed")
	return nil
}

// Prune removes what is older than the newest checkpoints to keep and what they are based on, and what was
// left half-written before latest.
func (f Folder) Prune(latest Generation, keep int) error {
	list, err := f.Generations()
	if err != nil {
		return err
	}
	whole := 0
	return f.removeBut(list, func(g Generation) bool {
		if f.Whole(g) {
			whole++
			if whole <= keep {
				return true
			}
		}
		return g.Compare(latest) >= 0
	})
}

// removeBut removes of a list, the newest first, what is neither to stay nor what something that stays is based on.
func (f Folder) removeBut(list []Generation, stays func(Generation) bool) error {
	needed := map[Generation]bool{}
	for _, g := range list {
		if stays(g) || needed[g] {
			if base, ok := f.baseOf(g); ok {
				needed[base] = true
			}
			continue
		}
		if err := f.Remove(g); err != nil {
			return err
		}
	}
	return nil
}

// PruneTo removes what is older than the newest of those to keep, none of them, and not what one that stays is based on.
func (f Folder) PruneTo(keep []Generation) error {
	if len(keep) == 0 {
		return nil
	}
	newest := slices.MaxFunc(keep, Generation.Compare)
	list, err := f.Generations()
	if err != nil {
		return err
	}
	return f.removeBut(list, func(g Generation) bool { return g.Compare(newest) >= 0 || slices.Contains(keep, g) })
}
