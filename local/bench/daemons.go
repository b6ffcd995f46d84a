package bench

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"trainmaster/internal/freeport"
)

// daemons are masters in processes of their own, which all serve one job.
type daemons struct {
	program  Program
	endpoint string               // of etcd
	dir      string               // for their log
	flags    []string             // in addition to the flags of each process
	running  map[string]*exec.Cmd // by address
}

// mastersLog is where all of them write.
const mastersLog = "masters.log"

func (d *daemons) log() string { return filepath.Join(d.dir, mastersLog) }

// start starts one more.
func (d *daemons) start() error {
	log, err := os.OpenFile(d.log(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	addr, err := freeport.Addr("127.0.0.1")
	if err != nil {
		return err
	}
	cmd := exec.Command(d.program[0], append([]string{"--endpoints", d.endpoint, "--own-etcd", "--listen", addr, "--http", "", "--passes", "0",
		"--chunks-per-task", "1", "--pass-mode", "rolling"}, d.flags...)...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is for the parent alone
	if err := cmd.Start(); err != nil {
		return err
	}
	if d.running == nil {
		d.running = map[string]*exec.Cmd{}
	}
	d.running[addr] = cmd
	return nil
}

// kill ends what runs, stopped or not.
func (d *daemons) kill() {
	for _, cmd := range d.running {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
}
