package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"trainmaster/dataset"
	"trainmaster/taskqueue"
	"trainmaster/trainer"
)

type helloReply struct {
	Version     int    `json:"version"`
	Master      string `json:"master"`
	Trainer     string `json:"trainer"`
	Ordinal     uint32 `json:"ordinal"`
	Incarnation uint64 `json:"incarnation"`
	Job         string `json:"job"`
	JobID       string `json:"job_id"`
	Explicit    bool   `json:"explicit"`
	Mode        string `json:"mode"`
	Cuts        bool   `json:"cuts"`
	Epoch       uint32 `json:"epoch"`
	Window      int    `json:"window"`
}

type nextReply struct {
	Tasks    []task  `json:"tasks"`
	Wait     string  `json:"wait"`
	Answered bool    `json:"answered"`
	Over     string  `json:"over"`
	Stopped  []int   `json:"stopped"`
	Silent   float64 `json:"silent"`
}

type stepReply struct {
	Step       uint64 `json:"step"`
	Generation uint64 `json:"generation"`
	Epoch      uint32 `json:"epoch"`
	Dropped    bool   `json:"dropped"`
}

// task is a task as the training process has it.
type task struct {
	ID      int     `json:"id"`
	Kind    string  `json:"kind"`
	Dataset int     `json:"dataset"`
	Pass    uint32  `json:"pass"`
	Index   int     `json:"index"`
	Base    int64   `json:"base"`
	Chunks  []chunk `json:"chunks"`
}

// tasks are the tasks that the training process has, by their numbers.
type tasks struct {
	mu   sync.Mutex
	last int
	byID map[int]*taskqueue.Task
}

// number returns the number of a task that is not among them.
func (t *tasks) number() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last++
	return t.last
}

func (t *tasks) add(one *taskqueue.Task) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byID == nil {
		t.byID = map[int]*taskqueue.Task{}
	}
	t.last++
	t.byID[t.last] = one
	return t.last
}

// take returns tasks and forgets them. It ignores unknown numbers: a finish can be repeated.
func (t *tasks) take(ids ...int) (list []*taskqueue.Task) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, id := range ids {
		if one := t.byID[id]; one != nil {
			list = append(list, one)
			delete(t.byID, id)
		}
	}
	return list
}

func (t *tasks) of(id int) *taskqueue.Task {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.byID[id]
}

// named returns the numbers of tokens.
func (t *tasks) named(tokens []taskqueue.Token) []int {
	ids := []int{}
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, one := range t.byID {
		if slices.Contains(tokens, one.Token) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

func (t *tasks) drop() {
	t.mu.Lock()
	defer t.mu.Unlock()
	clear(t.byID)
}

const (
	mostWanted   = trainer.MaxWindow
	defaultWait  = 10.0    // seconds of next
	replyTarget  = 1 << 20 // bytes after which next gives no further task
	bytesOfChunk = 200     // estimate of one chunk of a task in a reply
)

// beginMain is begin for the operations of the main connection.
func (a *agent) beginMain(r *request) work {
	switch r.Op {
	case "hello":
		return func(ctx context.Context) (reply, error) { return a.hello(ctx, r) }
	case "close":
		return func(context.Context) (reply, error) { return reply{}, a.leave() }
	}
	w := a.hasJoined()
	if w == nil {
		// The first request waits for the session; a request without a reply has no task yet.
		return func(ctx context.Context) (reply, error) {
			if _, err := a.session(ctx); err != nil {
				return reply{}, err
			}
			rest := a.beginJoined(a.window, r)
			if rest == nil {
				return reply{}, nil
			}
			return rest(ctx)
		}
	}
	return a.beginJoined(w, r)
}

func (a *agent) beginJoined(w *trainer.Window, r *request) work {
	switch r.Op {
	case "report":
		return func(ctx context.Context) (reply, error) { return a.report(ctx, w, r) }
	case "next":
		w.Finished(a.tasks.take(r.Finished...)...)
		return a.next(w, r)
	case "finish":
		w.Finished(a.tasks.take(r.Finished...)...)
		if r.ID == 0 {
			return nil
		}
		return func(ctx context.Context) (reply, error) { return reply{}, w.Reported(ctx) }
	case "fail":
		for _, t := range a.tasks.take(r.Task) {
			w.Failed(t, cmp.Or(r.Error, "the trainer gave no reason"))
		}
		return nil
	case "progress":
		w.Client().Progressed(int(r.Records), number(r.Loss))
		return nil
	case "applied":
		if !w.Client().Explicit() {
			return failing(trainer.ErrNotExplicit)
		}
		if t := a.tasks.of(r.Task); t != nil {
			w.Applied(t, r.Step, r.N)
		}
		return nil
	case "last_step":
		return func(ctx context.Context) (reply, error) { return a.placed(w.LastStep(ctx)) }
	case "rollback":
		return func(ctx context.Context) (reply, error) {
			return a.placed(w.Rollback(ctx, r.Step, cmp.Or(r.Generation, w.Client().Incarnation())))
		}
	case "flushed":
		return func(ctx context.Context) (reply, error) { return reply{}, w.Flushed(ctx, r.Step) }
	case "commit":
		return func(ctx context.Context) (reply, error) { return reply{}, w.Commit(ctx, r.Step) }
	case "commands":
		return a.commands(w, r)
	case "evaluated":
		return func(context.Context) (reply, error) { return reply{}, a.evaluated(r) }
	case "used":
		a.used(w, r)
		return nil
	case "boundary":
		return func(ctx context.Context) (reply, error) { return reply{}, w.Boundary(ctx) }
	}
	if isArena[r.Op] {
		return func(ctx context.Context) (reply, error) { return a.parameters(ctx, w, r) }
	}
	return failing(invalidf("op: expected an operation of version %d of the protocol, found %q: use an SDK and a master of the same release", Version, r.Op))
}

func number(f *float64) float64 {
	if f == nil {
		return 0
	}
	return *f
}

func (a *agent) hello(ctx context.Context, r *request) (reply, error) {
	//guard:agent-version-checked
	if r.Version != Version {
		return reply{}, invalidf("version: expected %d, found %d: use an SDK and a master of the same release", Version, r.Version)
	}
	w, err := a.session(ctx)
	if err != nil {
		return reply{}, err
	}
	c := w.Client()
	mode := "async"
	if c.Sync() {
		mode = "sync"
	}
	return reply{content: helloReply{
		Version: Version, Master: a.config.Program, Trainer: a.config.Trainer.ID, Ordinal: uint32(c.Ordinal()), Incarnation: c.Incarnation(), Job: a.config.Job, JobID: c.JobID(),
		Explicit: c.Explicit() && !c.Cuts(), Mode: mode, Cuts: c.Cuts(), Epoch: c.Epoch(), Window: w.Size(),
	}}, nil
}

func (a *agent) report(ctx context.Context, w *trainer.Window, r *request) (reply, error) {
	if len(r.Paths) == 0 {
		return reply{}, invalidf("paths: expected at least one path, found none")
	}
	err := w.Client().ReportDataset(ctx, r.Paths)
	if errors.Is(err, trainer.ErrOtherDataset) {
		err = fmt.Errorf("%w: a job has one dataset: read other files without the job (read_records), or name them with --evaluation-data", err)
	}
	return reply{}, err
}

// waits has the reasons in replies.
var waits = map[trainer.Why]string{
	trainer.HasTasks: "", trainer.NoTask: "task", trainer.NoAnswer: "task", trainer.Full: "window", trainer.NeedsCommit: "commit", trainer.NeedsRollback: "rollback", trainer.Drained: "drain",
}

// next gives tasks. It does not end with r.Wait, which is the time until it answers without a task.
func (a *agent) next(w *trainer.Window, r *request) work {
	wait := defaultWait
	if r.Wait != nil {
		wait = *r.Wait
	}
	r.Wait = nil
	want := min(max(r.Want, 1), mostWanted)
	return func(ctx context.Context) (reply, error) {
		list, why, err := a.take(ctx, w, trainer.Wish{Most: want, Wait: seconds(wait), Now: r.Now})
		out := &nextReply{Tasks: []task{}, Wait: waits[why], Answered: why != trainer.NoAnswer, Stopped: a.tasks.named(w.Stopped()), Silent: a.silent()}
		if errors.Is(err, io.EOF) {
			out.Wait, out.Over = "", err.Error()
			return reply{content: out}, nil
		}
		if err != nil {
			if errors.Is(err, trainer.ErrRolledBack) {
				a.tasks.drop()
			}
			return reply{}, err
		}
		for _, t := range list {
			out.Tasks = append(out.Tasks, describe(t, w.Base(t), w.Stamps(t)))
		}
		return reply{content: out, number: func() {
			for i, t := range list {
				out.Tasks[i].ID = a.tasks.add(t)
			}
		}}, nil
	}
}

// take takes tasks. A training process that requests a task is between two mini-batches: it stops for a cut here.
func (a *agent) take(ctx context.Context, w *trainer.Window, wish trainer.Wish) (list []*taskqueue.Task, why trainer.Why, err error) {
	for until := time.Now().Add(wish.Wait); ; wish.Wait = time.Until(until) {
		list, why, err = w.Take(ctx, wish)
		if err != nil || why != trainer.NeedsCut {
			return list, why, err
		}
		//guard:request-for-a-task-is-a-boundary
		if err := w.AwaitCut(ctx); err != nil {
			return nil, trainer.NoTask, err
		}
		if !time.Now().Before(until) {
			return nil, trainer.NoAnswer, nil
		}
	}
}

// describe returns a task for the training process, without its number.
func describe(t *taskqueue.Task, base int64, stamps []dataset.Stamp) task {
	out := task{
		Kind: t.Token.Kind.String(), Dataset: t.Token.Dataset, Pass: uint32(t.Token.Pass), Index: t.Index, Base: base, Chunks: make([]chunk, len(t.Chunks)),
	}
	file := 0
	for i, c := range t.Chunks {
		if i > 0 && c.Path != t.Chunks[i-1].Path {
			file++
		}
		var s dataset.Stamp
		if file < len(stamps) {
			s = stamps[file]
		}
		out.Chunks[i] = chunk{
			Path: c.Path, Offset: c.Index.Offset, Size: c.Index.Size, Records: int64(c.Index.Records), Compression: uint8(c.Index.Compression), Layout: uint8(c.Index.Layout),
			Checksum: c.Index.Checksum, Stamp: stamp(s),
		}
	}
	return out
}

// placed returns the reply to last_step and rollback.
func (a *agent) placed(p taskqueue.StepPlace, dropped bool, err error) (reply, error) {
	if err != nil {
		return reply{}, err
	}
	if dropped {
		a.tasks.drop()
	}
	return reply{content: stepReply{Step: p.Step, Generation: p.Generation, Epoch: p.Epoch, Dropped: dropped}}, nil
}
