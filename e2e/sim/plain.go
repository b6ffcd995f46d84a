package sim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"trainmaster/master/netrpc/wire"
	"trainmaster/taskqueue"
)

// getTask is a request of a plain client: GetTask, or TaskFailed if error is set.
type getTask struct {
	finished bool
	index    int
	token    taskqueue.Token
	offsets  uint64 // of the chunks that were read
	error    string
	byID     bool // the finish names its task by a number, as over gRPC
}

// plainTimeout is the time without an answer after which a client closes its connection. A long poll takes 10 s.
const plainTimeout = 20 * time.Second

// runPlain runs the minimal client: one connection, one task at a time. It does not repeat a finish, unless it names tasks by numbers. It
// returns false if the job has ended.
func (t *trainer) runPlain(p *process) bool {
	var n *node
	for _, other := range t.world.nodes {
		if other.addr == t.leader.Addr && other.up {
			n = other
		}
	}
	if n == nil {
		p.sleep(t.between(100*time.Millisecond, time.Second))
		return true
	}
	t.world.plainConns++
	c := &conn{trainer: t, node: n, life: n.run, ctx: &connContext{Context: context.Background()}, plain: fmt.Sprintf("conn-%s-%d", t.id, t.world.plainConns)}
	n.conns = append(n.conns, c)
	t.conn = c
	err := t.overConnection(p, c)
	c.breaks()
	if errors.Is(err, wire.ErrJobFinished) || errors.Is(err, wire.ErrJobFailed) {
		t.jobEnded = true
		return false
	}
	p.sleep(t.between(50*time.Millisecond, time.Second))
	return true
}

// overConnection requests and trains tasks until the connection or the job ends.
func (t *trainer) overConnection(p *process, c *conn) error {
	task := t.unsent
	for n := 1; ; n++ {
		request := getTask{finished: len(task.Chunks) > 0, index: task.Index, token: task.Token, offsets: offsetsOf(task), byID: t.habit.byID}
		next, err := t.getTask(p, c, request)
		if err != nil {
			if t.habit.byID {
				t.unsent = task
			}
			return err
		}
		t.unsent = taskqueue.Task{}
		if t.habit.reuses {
			overlay(&task, next)
		} else {
			task = next
		}
		if len(next.Chunks) == 0 {
			continue // the answer was "wait"
		}
		t.note("%s: gets task %d, %v", t.name, next.Index, next.Token)
		t.hangs(p, next.Token, n)
		p.sleep(t.between(t.habit.task[0], t.habit.task[1]))
		reason := t.poisoned(p, task.Index)
		if reason == "" {
			t.world.check.trainedTask(task)
			continue
		}
		if _, err := t.getTask(p, c, getTask{finished: true, index: task.Index, token: task.Token, error: reason, byID: t.habit.byID}); err != nil {
			return err
		}
		task = taskqueue.Task{}
	}
}

func offsetsOf(task taskqueue.Task) uint64 {
	return taskqueue.OffsetsOf(len(task.Chunks), func(i int) int64 { return task.Chunks[i].Index.Offset })
}

// overlay decodes a reply into the variable of an older reply, as gob does: fields with the value
// zero are not sent and keep their old values.
func overlay(task *taskqueue.Task, next taskqueue.Task) {
	if next.Index != 0 {
		task.Index = next.Index
	}
	if len(next.Chunks) > 0 {
		if len(task.Chunks) == 0 {
			task.Chunks = make([]taskqueue.Chunk, 1)
		}
		task.Chunks[0].Path = next.Chunks[0].Path
		if next.Chunks[0].Index.Offset != 0 {
			task.Chunks[0].Index.Offset = next.Chunks[0].Index.Offset
		}
	}
	to, from := &task.Token, next.Token
	if from.Epoch != 0 {
		to.Epoch = from.Epoch
	}
	if from.Pass != 0 {
		to.Pass = from.Pass
	}
	if from.Position != 0 {
		to.Position = from.Position
	}
	if from.Attempt != 0 {
		to.Attempt = from.Attempt
	}
}

// getTask sends a request over a connection and waits for the answer or the end of the
// connection.
func (t *trainer) getTask(p *process, c *conn, request getTask) (task taskqueue.Task, err error) {
	w, f := t.world, &t.world.plan.faults
	answered := false
	err = io.ErrUnexpectedEOF
	if c.broken {
		return task, err
	}
	p.wait(func(wake func()) {
		c.ended = wake
		t.after(plainTimeout, wake)
		if w.now < w.plan.quiet && w.chance(f.breaks) {
			w.after(w.netDelay(), c.breaks)
			if w.chance(0.5) {
				return
			}
		}
		c.node.after(w.netDelay(), func() {
			if c.node.run != c.life || c.ctx.err != nil {
				c.breaks()
				return
			}
			c.node.serveGetTask(c, request, func(got taskqueue.Task, failed error) {
				t.after(w.netDelay(), func() {
					if !c.broken && !answered {
						answered, task, err = true, got, failed
						wake()
					}
				})
			})
		})
	})
	c.ended = nil
	return task, err
}

// serveGetTask handles a request as a connection of master/netrpc does. The connection is the
// session, which begins with its first task. If the answer cannot be written, its task is returned.
func (n *node) serveGetTask(c *conn, r getTask, reply func(taskqueue.Task, error)) {
	ev := &taskqueue.PlainAsk{
		Trainer: c.who.Ordinal, Incarnation: c.who.Incarnation, Connection: c.plain,
		Finished: r.finished, Index: r.index, Result: taskqueue.Result{Token: r.token, Error: r.error}, Offsets: r.offsets, Want: r.error == "",
	}
	if r.byID {
		ev.Again = true
		if r.finished {
			ev.Task, ev.Index, ev.Token = r.token.ID(), 0, taskqueue.Token{}
			n.world.check.numbered[ev.Task] = r.token
		}
	}
	c.pending = true
	n.put(c, ev, func(a taskqueue.Answer, _ uint64, err error) {
		c.pending = false
		if err == nil && a.Ordinal != 0 {
			c.who = wire.Trainer{Ordinal: a.Ordinal, Incarnation: a.Incarnation}
		}
		task := taskqueue.Task{Index: -1}
		if err == nil && a.Kind == taskqueue.AnswerTask {
			task = taskqueue.Task{Index: a.Index, Token: a.Token, Chunks: n.world.table.TaskChunks(a.Index)}
		}
		if c.ctx.err == nil {
			reply(task, replyError(a, err))
			return
		}
		if len(task.Chunks) > 0 {
			n.put(nil, &taskqueue.Undelivered{Trainer: c.who.Ordinal, Incarnation: c.who.Incarnation, Token: task.Token}, nil)
		}
		n.disconnected(c)
	})
}

// disconnected reports a closed connection to the queue.
func (n *node) disconnected(c *conn) {
	who := c.who
	if who.Ordinal == 0 {
		return
	}
	n.put(nil, &taskqueue.Disconnected{Trainer: who.Ordinal, Incarnation: who.Incarnation}, func(_ taskqueue.Answer, _ uint64, err error) {
		if err == nil && c.plain != "" {
			n.world.check.disconnected(who)
		}
	})
}
