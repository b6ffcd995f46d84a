package drill

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// SceneFile is the name of the file in the directory of a run.
const SceneFile = "processes.json"

// Scene lists the processes of a job on this machine.
type Scene struct {
	Endpoint  string    `json:"endpoint"` // of etcd, without a proxy
	Control   string    `json:"control"`  // host:port of the proxies' control; empty: no proxies
	Secret    string    `json:"secret"`   // for Control
	Processes []Process `json:"processes"`
}

// Process is a process of a job that runs now.
type Process struct {
	Name    string `json:"name"` // such as master-1; a trainer has its id
	PID     int    `json:"pid"`
	Started uint64 `json:"started"` // start time in ticks since boot; 0 if unknown
}

// ReadScene reads the scene of a run in dir.
func ReadScene(dir string) (*Scene, error) {
	path := filepath.Join(dir, SceneFile)
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("expected the directory of a running `master run`: %w", err)
	}
	s := &Scene{}
	if err := json.Unmarshal(text, s); err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return s, nil
}

// LatestRun returns the newest directory under parent of a running job: its scene has a live process.
func LatestRun(parent string) (dir string, err error) {
	found, err := filepath.Glob(filepath.Join(parent, "*", SceneFile))
	if err != nil {
		return "", err
	}
	slices.Sort(found)
	for _, path := range slices.Backward(found) {
		scene, err := ReadScene(filepath.Dir(path))
		if err == nil && slices.ContainsFunc(scene.Processes, Process.lives) {
			return filepath.Dir(path), nil
		}
	}
	return "", fmt.Errorf("no run in progress in %s: start one with `master run`, or name another directory with --dir, or an etcd with --endpoints", parent)
}

// process finds a process by name.
func (s *Scene) process(name string) (Process, error) {
	var names []string
	for _, p := range s.Processes {
		if p.Name == name && p.lives() {
			return p, nil
		}
		names = append(names, p.Name)
	}
	return Process{}, fmt.Errorf("process %q: expected one of %[2]s, found none of that name", name, strings.Join(names, ", "))
}

// Register stores the scene of a run in its file.
type Register struct {
	path string

	mu    sync.Mutex
	scene Scene
}

// NewRegister creates a scene in dir.
func NewRegister(dir string, scene Scene) (*Register, error) {
	r := &Register{path: filepath.Join(dir, SceneFile), scene: scene}
	return r, r.write()
}

// Started registers a process. It replaces an earlier process of that name.
func (r *Register) Started(name string, pid int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.drop(name)
	started, _ := startTime(pid) // 0 if the process has already ended: a drill then does not find it
	r.scene.Processes = append(r.scene.Processes, Process{Name: name, PID: pid, Started: started})
	return r.write()
}

// Ended removes a process.
func (r *Register) Ended(name string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.drop(name)
	return r.write()
}

func (r *Register) drop(name string) {
	r.scene.Processes = slices.DeleteFunc(r.scene.Processes, func(p Process) bool { return p.Name == name })
}

// write replaces the file atomically.
func (r *Register) write() error {
	text, err := json.MarshalIndent(r.scene, "", "  ")
	if err != nil {
		return err
	}
	fresh := r.path + ".new"
	if err := os.WriteFile(fresh, append(text, '\n'), 0o600); err != nil {
		return fmt.Errorf("register the processes of the run: %w", err)
	}
	return os.Rename(fresh, r.path)
}

// Close removes the file. All processes have ended.
func (r *Register) Close() error {
	if err := os.Remove(r.path); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
