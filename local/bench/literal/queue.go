// Package literal is the baseline: a queue that writes its three lists, gob-encoded and gzipped, in one fenced transaction for
// each change. A finish is a change, and a dispatch is another. Store, level of compression and transaction are those of the real
// queue. The differences: each change writes O(tasks), each transaction serves one caller, and the encoder (see New).
//
// It never returns a task of a lost trainer, and starts the next pass when no task is left. It is for measurements only.
package literal

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/rpc"
	"sync"
	"sync/atomic"

	"trainmaster/etcdstore"
	"trainmaster/master/netrpc/wire"
	"trainmaster/taskqueue"
)

// Queue is the service RPCServer of the baseline.
type Queue struct {
	ctx    context.Context // of its transactions
	lock   *etcdstore.Lock
	encode func(v any) ([]byte, error)

	mu       sync.Mutex
	queues   taskqueue.TaskQueues
	revision int64 // of the stored lists

	commits, bytes atomic.Int64 // stored until now
}

// Encode is gob and gzip of the standard library, at its fastest level.
func Encode(v any) ([]byte, error) {
	var b bytes.Buffer
	zip, err := gzip.NewWriterLevel(&b, gzip.BestSpeed)
	if err != nil {
		return nil, err
	}
	if err := gob.NewEncoder(zip).Encode(v); err != nil {
		return nil, err
	}
	if err := zip.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// New returns a queue of all tasks of a table, which encode writes, and stores it under the lock.
func New(ctx context.Context, lock *etcdstore.Lock, table *taskqueue.Table, encode func(v any) ([]byte, error)) (*Queue, error) {
	_, revision, err := lock.ReadState(ctx)
	if err != nil {
		return nil, err
	}
	q := &Queue{ctx: ctx, lock: lock, encode: encode, revision: revision, queues: taskqueue.TaskQueues{Pending: map[int]taskqueue.TaskEntry{}}}
	for i := range table.Tasks() {
		q.queues.Todo = append(q.queues.Todo, taskqueue.TaskEntry{Task: taskqueue.Task{Index: i, Chunks: table.TaskChunks(i)}})
	}
	return q, q.store()
}

// GetTask counts a finished task and returns a task, or a wait answer when all are pending. These are two changes, and the first is
// written before the second.
func (q *Queue) GetTask(finished *taskqueue.Task, result *taskqueue.Task) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	*result = taskqueue.Task{Index: -1}
	if len(finished.Chunks) > 0 {
		if err := q.finish(finished.Index); err != nil {
			return err
		}
	}
	if len(q.queues.Todo) == 0 {
		return nil
	}
	entry := q.queues.Todo[0]
	q.queues.Todo = q.queues.Todo[1:]
	q.queues.Pending[entry.Task.Index] = entry
	*result = entry.Task
	return q.store()
}

func (q *Queue) finish(index int) error {
	entry, ok := q.queues.Pending[index]
	if !ok {
		return fmt.Errorf("task %d is not pending", index)
	}
	delete(q.queues.Pending, index)
	q.queues.Done = append(q.queues.Done, entry)
	if len(q.queues.Todo) == 0 {
		q.queues.Todo, q.queues.Done = q.queues.Done, nil
	}
	return q.store()
}

// store writes all lists.
func (q *Queue) store() error {
	state, err := q.encode(&q.queues)
	if err != nil {
		return err
	}
	revision, err := q.lock.Commit(q.ctx, q.revision, state, nil)
	if err != nil {
		return err
	}
	q.revision = revision
	q.commits.Add(1)
	q.bytes.Add(int64(len(state)))
	return nil
}

// Stored returns how often the lists were stored, and how many bytes that were. It waits for
// no request.
func (q *Queue) Stored() (commits, bytes int64) { return q.commits.Load(), q.bytes.Load() }

// Serve serves net/rpc clients until ctx ends.
func (q *Queue) Serve(ctx context.Context, l net.Listener) error {
	server := rpc.NewServer()
	if err := server.RegisterName(wire.Service, &service{q}); err != nil {
		return err
	}
	web := &http.Server{Handler: server}
	stop := context.AfterFunc(ctx, func() { _ = web.Close() })
	defer stop()
	if err := web.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the literal baseline: %w", err)
	}
	return nil
}

// service is what net/rpc may see of a queue.
type service struct{ queue *Queue }

// GetTask is Queue.GetTask.
func (s *service) GetTask(finished *taskqueue.Task, result *taskqueue.Task) error {
	return s.queue.GetTask(finished, result)
}
