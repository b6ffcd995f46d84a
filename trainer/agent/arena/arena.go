package arena

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"sync"

	"github.com/sirupsen/logrus"

	"trainmaster/taskqueue"
	"trainmaster/trainer/params"
)

// Config is what an arena needs besides the session.
type Config struct {
	// Servers returns the addresses of the parameter servers by index, as [params.Config.Addrs]. nil: they cannot be found.
	Servers func(ctx context.Context) ([]string, error)
	During  func(parent context.Context, index int, addr string) (context.Context, context.CancelFunc)
	Log     *logrus.Entry
}

// Session is the session of the trainer; *trainer.Client is one.
type Session interface {
	Ordinal() taskqueue.Ordinal
	Incarnation() uint64
	JobID() string
	Epoch() uint32
	Sync() bool
	UntilFailed(ctx context.Context) (context.Context, context.CancelFunc)
}

// Steps reports staged gradients to the master and waits for the step; *trainer.Window is one.
type Steps interface {
	Staged(ctx context.Context, version uint64, records int) (committed uint64, included bool, err error)
}

// Settings are the fields of the request ps_open.
type Settings struct {
	Tensors   []Spec           `json:"tensors"`
	Tables    []Table          `json:"tables"` // of embeddings
	Optimizer params.Optimizer `json:"optimizer"`
	Mode      string           `json:"mode"` // async, sync; "": the mode of the job
	Staleness params.Staleness `json:"staleness"`
	WireDType params.WireDType `json:"wire_dtype"`
}

// Request is a request for an operation.
type Request struct {
	Op  string `json:"op"`
	Seq uint64 `json:"seq"` // number of the operation, from 1 and growing

	Step    uint64   `json:"step"`    // of push and push_pull. 0: the next step.
	Scale   *float32 `json:"scale"`   // of the learning rate, of push and push_pull. Default 1.
	Version uint64   `json:"version"` // least version of pull, version of the parameters of stage (0: as in the arena)
	Records int      `json:"records"` // of stage
	Rows    []Rows   `json:"rows"`    // of lookup. Gradients of push, push_pull and stage.
}

// Reply is the reply to an operation.
type Reply struct {
	Version  uint64 `json:"version"`            // of the parameters; see [params.Client.Pull]
	Step     uint64 `json:"step,omitempty"`     // of push and push_pull
	Included *bool  `json:"included,omitempty"` // of stage: the gradients are in a version
}

// Arena has the parameters and gradients of one training process.
type Arena struct {
	config Config
	ctx    context.Context
	cancel context.CancelFunc
	owned  sync.WaitGroup

	mu      sync.Mutex
	model   *model     // nil: not opened
	current *operation // the last operation, or nil
}

// model is an opened arena. One operation at a time uses it.
type model struct {
	session Session
	steps   Steps
	config  params.Config
	layout  Layout
	memory  *memory
	region  *memory // of rows; nil before ps_rows

	parameters, gradients []params.Tensor

	client  *params.Client // nil before ps_init
	step    uint64         // of the last push
	version uint64         // of the parameters; in a synchronous job the least that the next pull must have
	held    uint64         // version of the parameters in the arena
}

// operation is an operation that was begun.
type operation struct {
	seq   uint64
	done  chan struct{} // closed when reply and err are set
	reply Reply
	err   error
}

// New returns an arena that is not opened.
func New(ctx context.Context, config Config) *Arena {
	a := &Arena{config: config}
	a.ctx, a.cancel = context.WithCancel(ctx)
	return a
}

// Close ends the operation in progress and releases the memory.
func (a *Arena) Close() {
	a.cancel()
	a.owned.Wait()
	if m := a.opened(); m != nil {
		if m.client != nil {
			if err := m.client.Close(); err != nil {
				a.config.Log.WithError(err).Debug("connections to parameter servers closed")
			}
		}
		m.memory.release()
		if m.region != nil {
			m.region.release()
		}
	}
}

func (a *Arena) opened() *model {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.model
}

// Open makes the arena of a model and returns its layout and descriptor. The caller does not close the descriptor. A session has one arena.
func (a *Arena) Open(session Session, steps Steps, body []byte) (layout Layout, fd int, err error) {
	var s Settings
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(&struct {
		*Settings
		ID   any `json:"id"`
		Op   any `json:"op"`
		Wait any `json:"wait"`
	}{Settings: &s}); err != nil {
		return layout, 0, unreadable(err)
	}
	config, err := a.configure(session, &s)
	if err != nil {
		return layout, 0, err
	}
	if layout, err = layOut(s.Tensors); err != nil {
		return layout, 0, err
	}
	layout.Mode, layout.LearningRate = config.Mode.String(), config.Optimizer.LearningRate
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.model != nil {
		return layout, 0, invalidf("ps_open: expected one model in a session, found a second one: close the first client")
	}
	shared, err := newMemory(layout.Size, fixed)
	if err != nil {
		return layout, 0, err
	}
	m := &model{session: session, steps: steps, config: config, layout: layout, memory: shared}
	m.parameters, m.gradients = layout.tensors(shared.bytes, s.Tensors)
	a.model = m
	return layout, shared.fd, nil
}

// unreadable returns the error for settings of another form. It has no types of this program, since the settings are arguments of a script.
func unreadable(err error) error {
	if wrong, is := errors.AsType[*json.UnmarshalTypeError](err); is {
		expected := "an object"
		switch kind := wrong.Type.Kind(); {
		case kind == reflect.String:
			expected = "a string"
		case kind == reflect.Slice:
			expected = "a list"
		case kind == reflect.Float32 || kind == reflect.Float64:
			expected = "a number"
		case kind >= reflect.Int && kind <= reflect.Uint64:
			expected = "a whole number"
		}
		return invalidf("%s: expected %s, found %s", strings.TrimPrefix(wrong.Field, "Settings."), expected, wrong.Value)
	}
	if name, is := strings.CutPrefix(err.Error(), "json: unknown field "); is {
		return invalidf("%s: expected a setting of a model, a table or an optimizer, found an unknown name", name)
	}
	return invalidf("ps_open: %v", err)
}

// configure returns the configuration of the client of the servers.
func (a *Arena) configure(session Session, s *Settings) (params.Config, error) {
	job := params.Async
	if session.Sync() {
		job = params.Sync
	}
	//guard:mode-of-the-job
	if s.Mode != "" && s.Mode != job.String() {
		return params.Config{}, invalidf("mode: expected %s, as --update-mode of the master, found %q", job, s.Mode)
	}
	if a.config.Servers == nil {
		return params.Config{}, invalidf("parameter servers: expected the endpoints of etcd, which has their addresses, found only a master: start the script with \"master run --ps 1 -- COMMAND\", or set TRAINMASTER_ENDPOINTS")
	}
	tables, err := tablesOf(s.Tables)
	if err != nil {
		return params.Config{}, err
	}
	//guard:trainer-states-its-job
	config := params.Config{
		Addrs: a.config.Servers, During: a.config.During, Mode: job, Optimizer: s.Optimizer, Staleness: s.Staleness, WireDType: s.WireDType,
		Ordinal: uint32(session.Ordinal()), Incarnation: session.Incarnation(), JobID: session.JobID(), JobEpoch: session.Epoch(), Log: a.config.Log, Tables: tables,
	}
	if err := config.Validate(); err != nil {
		return config, invalidf("%v", err)
	}
	return config, nil
}

// Do begins an operation, or waits for the one with the same number. If ctx ends first, the operation continues.
func (a *Arena) Do(ctx context.Context, r Request) (Reply, error) {
	op, err := a.begin(r)
	if err != nil {
		return Reply{}, err
	}
	select {
	case <-op.done:
		return op.reply, op.err
	case <-ctx.Done():
		return Reply{}, context.Cause(ctx)
	}
}

func (a *Arena) begin(r Request) (*operation, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	last := a.current
	//guard:repeated-operation-runs-once
	if last != nil && last.seq == r.Seq {
		return last, nil
	}
	do, known := operations[r.Op]
	switch {
	case !known:
		return nil, invalidf("op: found %q", r.Op)
	case a.model == nil:
		return nil, invalidf("%s: expected ps_open before it", r.Op)
	case r.Seq == 0 || last != nil && r.Seq < last.seq:
		return nil, invalidf("%s: seq: expected a larger number than in the last operation, found %d", r.Op, r.Seq)
	case last != nil && !last.ended():
		return nil, invalidf("%s: operation %d is in progress: repeat it with the same seq first", r.Op, last.seq)
	case a.model.client == nil && r.Op != "ps_init":
		return nil, invalidf("%s: expected ps_init before it", r.Op)
	}
	op := &operation{seq: r.Seq, done: make(chan struct{})}
	a.current = op
	m := a.model
	a.owned.Go(func() {
		defer close(op.done)
		// A call to a lost server waits for another one: it ends when the job fails.
		ctx, release := m.session.UntilFailed(a.ctx)
		defer release()
		op.reply, op.err = do(m, ctx, r)
		if cause := context.Cause(ctx); op.err != nil && cause != nil && a.ctx.Err() == nil {
			op.err = errors.Join(cause, op.err)
		}
	})
	return op, nil
}

func (op *operation) ended() bool {
	select {
	case <-op.done:
		return true
	default:
		return false
	}
}
