package bench

import (
	"fmt"
	"os"
	"slices"
	"time"
)

// Disk says how fast the disk is that etcd writes to.
type Disk struct {
	Folder         string  `json:"folder"`
	FdatasyncP50US float64 `json:"fdatasync_p50_us"` // of 2 KiB, overwritten in place
	InMemory       bool    `json:"in_memory"`        // no disk at all: fsync does nothing there
}

const (
	syncs     = 200
	syncBytes = 2 << 10
)

// measureDisk writes and syncs as etcd's log does: into a file that has its size already.
func measureDisk(folder string) (Disk, error) {
	if folder == "" {
		folder = os.TempDir()
	}
	file, err := os.CreateTemp(folder, "master-bench-disk-")
	if err != nil {
		return Disk{}, err
	}
	defer os.Remove(file.Name())
	defer file.Close()
	if _, err := file.Write(make([]byte, syncs*syncBytes)); err != nil {
		return Disk{}, err
	}
	if err := file.Sync(); err != nil {
		return Disk{}, err
	}
	took := make([]time.Duration, syncs)
	block := make([]byte, syncBytes)
	for i := range took {
		began := time.Now()
		if _, err := file.WriteAt(block, int64(i*syncBytes)); err != nil {
			return Disk{}, err
		}
		if err := syncData(file); err != nil {
			return Disk{}, fmt.Errorf("fdatasync in %s: %w", folder, err)
		}
		took[i] = time.Since(began)
	}
	slices.Sort(took)
	return Disk{Folder: folder, FdatasyncP50US: micros(took[syncs/2]), InMemory: inMemory(file)}, nil
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
