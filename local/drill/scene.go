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

// Scene is what runs on this machine for a job.
type Scene struct {
	Endpoint  string    `json:"endpoint"` // of etcd, without a proxy
	Control   string    `json:"control"`  // host:port of the proxies' control; empty: there are none
	Secret    string    `json:"secret"`   // for Control
	Processes []Process `json:"processes"`
}

// Process is a process of a job that runs now.
type Process struct {
	Name    string `json:"name"` // such as master-0; a trainer's is its id
	PID     int    `json:"pid"`
	Started uint64 `json:"started"` // as the kernel counts it; 0 where it does not say
}

// ReadScene reads the scene of a run in dir.
func ReadScene(dir string) (*Scene, error) {
	path := filepath.Join(dir, SceneFile)
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("expected the directory of a `master run` that is under way: %w", err)
	}
	s := &Scene{}
	if err := json.Unmarshal(text, s); err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return s, nil
}

// LatestRun is the newest directory of a run under parent that is under way: its processes are noted there, and live.
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
	return "", fmt.Errorf("no run is under way in %s: start one with `master run`, or name another directory with --dir, or an etcd with --endpoints", parent)
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
	return Process{}, fmt.Errorf("no process %q of the job runs here; expected one of %s", name, strings.Join(names, ", "))
}

// Register keeps the scene of a run in its file.
type Register struct {
	path string

	mu    sync.Mutex
	scene Scene
}

// NewRegister begins a scene in dir.
func NewRegister(dir string, scene Scene) (*Register, error) {
	r := &Register{path: filepath.Join(dir, SceneFile), scene: scene}
	return r, r.write()
}

// Started notes a process, in the place of an earlier one of that name.
func (r *Register) Started(name string, pid int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.drop(name)
	started, _ := startTime(pid) // one that has ended already is no worse than one that ends now
	r.scene.Processes = append(r.scene.Processes, Process{Name: name, PID: pid, Started: started})
	return r.write()
}

// Ended forgets a process.
func (r *Register) Ended(name string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.drop(name)
	return r.write()
}

func (r *Register) drop(name string) {
	r.scene.Processes = slices.DeleteFunc(r.scene.Processes, func(p Process) bool { return p.Name == name })
}

// write replaces the file as a whole: a reader sees the scene before or after.
func (r *Register) write() error {
	text, err := json.MarshalIndent(r.scene, "", "  ")
	if err != nil {
		return err
	}
	fresh := r.path + ".new"
	if err := os.WriteFile(fresh, append(text, '\n'), 0o600); err != nil {
		return fmt.Errorf("note the processes of the run: %w", err)
	}
	return os.Rename(fresh, r.path)
}

// Close removes the file: nothing runs any more.
func (r *Register) Close() error {
	if err := os.Remove(r.path); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
