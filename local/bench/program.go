package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// Program is a command line prefix that leads to ServeChild: the children of a measurement
// are this program again.
type Program []string

// child is a process of the program. Both sides send JSON values, over the standard input and output of the child.
type child struct {
	role string
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *json.Decoder
}

// start starts a child. It outlives the end of ctx, so that what uses it can end first;
// stop ends it.
func (p Program) start(role string, config any, stderr io.Writer) (*child, error) {
	text, err := json.Marshal(config)
	if err != nil {
		return nil, err
	}
	args := append(p[1:len(p):len(p)], role, string(text))
	c := &child{role: role, cmd: exec.Command(p[0], args...)}
	c.cmd.Stderr = stderr
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is for the parent alone
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	c.out = json.NewDecoder(bufio.NewReader(out))
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s process: %w", role, err)
	}
	return c, nil
}

// receive reads what the child says next. When ctx ends first it kills the child.
func (c *child) receive(ctx context.Context, v any) error {
	stop := context.AfterFunc(ctx, func() { _ = c.cmd.Process.Kill() })
	defer stop()
	err := c.out.Decode(v)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, io.EOF):
		return fmt.Errorf("%s process: it ended early", c.role)
	case err != nil:
		return fmt.Errorf("%s process: %w", c.role, err)
	}
	return nil
}

// proceed ends the wait of a child.
func (c *child) proceed() error {
	_, err := io.WriteString(c.in, "\n")
	return err
}

// proceedWith ends the wait of a child, and sends it a line.
func (c *child) proceedWith(line string) error {
	_, err := io.WriteString(c.in, line+"\n")
	return err
}

// stopPatience is the time limit for a child to end.
const stopPatience = 10 * time.Second

// stop closes the child's standard input and waits for its end.
func (c *child) stop() error {
	_ = c.in.Close() // already closed: the child is gone
	kill := time.AfterFunc(stopPatience, func() { _ = c.cmd.Process.Kill() })
	defer kill.Stop()
	if err := c.cmd.Wait(); err != nil {
		return fmt.Errorf("%s process: %w", c.role, err)
	}
	return nil
}

// parent is the other end, in the child.
type parent struct {
	in  *bufio.Reader
	out *json.Encoder
}

// await returns true at the signal of the parent, or false if the parent has ended.
func (p *parent) await() (proceed bool) {
	_, err := p.in.ReadByte()
	return err == nil
}

// line waits for the line of proceedWith.
func (p *parent) line() (line string, proceed bool) {
	line, err := p.in.ReadString('\n')
	return strings.TrimSuffix(line, "\n"), err == nil
}

// ServeChild is a child: args are its role and its configuration.
func ServeChild(ctx context.Context, args []string, in io.Reader, out io.Writer) error {
	if len(args) != 2 {
		return fmt.Errorf("expected a role and its configuration, found %d arguments", len(args))
	}
	var role interface {
		serve(ctx context.Context, p *parent) error
	}
	switch args[0] {
	case roleEtcd:
		role = &etcdConfig{}
	case roleLoad:
		role = &loadConfig{}
	case roleRecovery:
		role = &recoveryConfig{}
	case roleTrainers:
		role = &trainersConfig{}
	case roleShard:
		role = &shardConfig{}
	case rolePusher:
		role = &pusherConfig{}
	case roleStepper:
		role = &stepperConfig{}
	case roleTable:
		role = &tableConfig{}
	default:
		roles := []string{roleEtcd, roleLoad, roleRecovery, roleTrainers, roleShard, rolePusher, roleStepper, roleTable}
		return fmt.Errorf("expected one of %s, found %q", strings.Join(roles, ", "), args[0])
	}
	if err := json.Unmarshal([]byte(args[1]), role); err != nil {
		return fmt.Errorf("configuration of %s: %w", args[0], err)
	}
	return role.serve(ctx, &parent{in: bufio.NewReader(in), out: json.NewEncoder(out)})
}
