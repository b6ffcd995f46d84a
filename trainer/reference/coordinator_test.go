package reference_test

import (
	"context"
	"fmt"
	"io"
	"iter"
	"slices"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/recordio"
	"trainmaster/taskqueue"
)

// coordinator replaces the master: a real queue behind a mutex, with the rule of synchronous steps. It keeps the
// contributors of each version.
type coordinator struct {
	t      testing.TB
	shards []pb.ParameterServerClient

	// late reports whether a stage is left out of a version, as if it had arrived too late, unless it is the only
	// stage. nil: never.
	late func(version uint64, trainer taskqueue.Ordinal) bool

	// crowd is the number of trainers that must have asked before the first task is dispatched.
	crowd int

	mu      sync.Mutex
	queue   *taskqueue.Queue
	changed chan struct{} // closed at each change
	staged  map[taskqueue.Ordinal]contribution
	taken   map[taskqueue.Token]int // records of the task that are in committed versions
	steps   [][]contribution        // steps[v] is the step from version v to v+1
	leftOut int                     // stages that arrived after their version
	failed  []string
}

// contribution is a run of records of one task with gradients that one trainer staged.
type contribution struct {
	trainer     taskqueue.Ordinal
	incarnation uint64
	task        taskqueue.Token
	index       int
	first       int // record of the task
	records     int
}

func newCoordinator(t testing.TB, table *taskqueue.Table, options taskqueue.Options) *coordinator {
	c := &coordinator{
		t:       t,
		queue:   taskqueue.New("", [16]byte{1}, 1, options),
		changed: make(chan struct{}),
		staged:  map[taskqueue.Ordinal]contribution{},
		taken:   map[taskqueue.Token]int{},
	}
	if answer := c.queue.Apply(1, &taskqueue.Report{SetSpec: taskqueue.SetSpec{Shuffle: true, Seed: 5}, Table: table}); answer.Err != nil {
		t.Fatal(answer.Err)
	}
	return c
}

// update applies an event to the queue and wakes waiting requests.
func (c *coordinator) update(event taskqueue.Event) taskqueue.Answer {
	answer := c.queue.Apply(c.queue.Clock(), event)
	c.queue.Ready()
	c.wake()
	return answer
}

func (c *coordinator) wake() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// await calls ready, under the lock, until it returns true.
func (c *coordinator) await(ctx context.Context, ready func() bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for !ready() {
		changed := c.changed
		c.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
		}
		c.mu.Lock()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return nil
}

// commit completes a version once every trainer with a running task has staged.
func (c *coordinator) commit() {
	runners := c.queue.Runners()
	version := uint64(len(c.steps))
	var step, left []contribution
	for _, trainer := range runners {
		part, ok := c.staged[trainer]
		switch {
		case !ok:
			return
		case c.late != nil && c.late(version, trainer):
			left = append(left, part)
		default:
			step = append(step, part)
		}
	}
	if len(step) == 0 {
		step, left = left, nil
	}
	c.leftOut += len(left)
	if len(step) == 0 {
		return
	}
	request := &pb.CommitStepRequest{Version: version + 1}
	for _, part := range step {
		c.taken[part.task] += part.records
		request.Contributors = append(request.Contributors, &pb.StepContributor{
			Ordinal: uint32(part.trainer), Incarnation: part.incarnation, Records: uint32(part.records)})
	}
	c.steps = append(c.steps, step)
	clear(c.staged)
	for i, shard := range c.shards {
		if _, err := shard.CommitStep(c.t.Context(), request); err != nil {
			c.t.Errorf("commit version %d on shard %d: %v", version+1, i, err)
		}
	}
	c.wake()
}

func (c *coordinator) connect(addresses []string) {
	for _, address := range addresses {
		conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			c.t.Fatal(err)
		}
		c.t.Cleanup(func() { conn.Close() })
		c.shards = append(c.shards, pb.NewParameterServerClient(conn))
	}
}

// trainerLink is the link of one trainer to the coordinator. It implements reference.Tasks and reference.Steps.
type trainerLink struct {
	*coordinator
	ordinal     taskqueue.Ordinal
	incarnation uint64

	sequence uint64
	task     *taskqueue.Task
}

func (c *coordinator) join(id string) *trainerLink {
	c.mu.Lock()
	defer c.mu.Unlock()
	answer := c.update(&taskqueue.Join{ID: id})
	return &trainerLink{coordinator: c, ordinal: answer.Ordinal, incarnation: answer.Incarnation}
}

func (l *trainerLink) request(finished ...taskqueue.Result) *taskqueue.Request {
	l.sequence++
	return &taskqueue.Request{Trainer: l.ordinal, Incarnation: l.incarnation, Seq: l.sequence, Ack: l.sequence, Finished: finished}
}

func (l *trainerLink) Next(ctx context.Context, finished *taskqueue.Task) (next *taskqueue.Task, err error) {
	if finished != nil {
		l.coordinator.mu.Lock()
		answer := l.update(l.request(taskqueue.Result{Token: finished.Token}))
		l.commit()
		l.coordinator.mu.Unlock()
		if answer.Finishes[0] != taskqueue.Counted {
			return nil, fmt.Errorf("finish of %v: %v", finished.Token, answer.Finishes[0])
		}
	}
	l.coordinator.mu.Lock()
	if l.sequence == 0 {
		l.crowd--
		l.wake()
	}
	l.coordinator.mu.Unlock()
	awaitErr := l.await(ctx, func() bool {
		if l.crowd > 0 {
			return false
		}
		request := l.request()
		request.Want = true
		answer := l.queue.Apply(l.queue.Clock(), request)
		l.queue.Ready()
		switch answer.Kind {
		case taskqueue.AnswerTask:
			next = &taskqueue.Task{Index: answer.Index, Chunks: l.queue.Table(0).TaskChunks(answer.Index), Token: answer.Token}
		case taskqueue.AnswerEnded:
			err = io.EOF
		case taskqueue.AnswerWait:
			return false
		default:
			err = fmt.Errorf("unexpected answer %+v", answer)
		}
		return true
	})
	l.task = next
	if awaitErr != nil {
		return nil, awaitErr
	}
	return next, err
}

func (l *trainerLink) Fail(_ context.Context, task *taskqueue.Task, reason error) error {
	l.coordinator.mu.Lock()
	defer l.coordinator.mu.Unlock()
	l.failed = append(l.failed, reason.Error())
	l.update(l.request(taskqueue.Result{Token: task.Token, Error: reason.Error()}))
	l.commit()
	return nil
}

func (l *trainerLink) Records(task *taskqueue.Task) iter.Seq2[[]byte, error] {
	return recordsOf(task.Chunks)
}

func (l *trainerLink) Staged(ctx context.Context, version uint64, _ uint32, records int) (committed uint64, included bool, err error) {
	l.coordinator.mu.Lock()
	if version == uint64(len(l.steps)) && records > 0 {
		l.staged[l.ordinal] = contribution{
			trainer: l.ordinal, incarnation: l.incarnation, task: l.task.Token, index: l.task.Index,
			first: l.taken[l.task.Token], records: records}
		l.commit()
	}
	l.coordinator.mu.Unlock()
	err = l.await(ctx, func() bool { return uint64(len(l.steps)) > version })
	if err != nil {
		return 0, false, err
	}
	l.coordinator.mu.Lock()
	defer l.coordinator.mu.Unlock()
	included = slices.ContainsFunc(l.steps[version], func(part contribution) bool { return part.trainer == l.ordinal })
	return uint64(len(l.steps)), included, nil
}

// recordsOf yields the records of chunks in real files.
func recordsOf(chunks []taskqueue.Chunk) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		for _, chunk := range chunks {
			file, err := recordio.Open(chunk.Path)
			if err != nil {
				yield(nil, err)
				return
			}
			more := true
			for record, err := range file.Chunk(chunk.Index) {
				if more = yield(record, err) && err == nil; !more {
					break
				}
			}
			file.Close()
			if !more {
				return
			}
		}
	}
}
