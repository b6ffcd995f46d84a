package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/rpc"
	"strings"
	"sync"
	"testing"

	"trainmaster/recordio"
	"trainmaster/taskqueue"
)

// plainClient is a minimal trainer: it uses only two methods of the documented protocol, three types and the file format.
type plainClient struct {
	j       *job
	records map[taskPosition]int // number of read records by task
}

// work requests tasks from a master until the job, the connection or ctx ends. over reports whether the job has ended.
func (c *plainClient) work(ctx context.Context, addr string) (over bool, err error) {
	client, err := rpc.DialHTTP("tcp", addr)
	if err != nil {
		return false, nil // the next master has another address
	}
	stop := context.AfterFunc(ctx, func() { _ = client.Close() }) // ends the call in progress
	defer stop()
	defer func() { _ = client.Close() }() // may have been closed by the master
	var dummy int
	if err := client.Call("RPCServer.ReportDataset", c.j.data.Train.Paths, &dummy); err != nil {
		return false, unexpected(err)
	}
	finished := taskqueue.Task{}
	for {
		var task taskqueue.Task
		switch err := client.Call("RPCServer.GetTask", &finished, &task); {
		case err == nil:
		case strings.HasPrefix(err.Error(), "job finished: "):
			return true, nil
		default:
			return false, unexpected(err)
		}
		if len(task.Chunks) > 0 { // otherwise the answer is "wait"
			n, err := read(task)
			if err != nil {
				return false, err
			}
			c.records[taskPosition{task.Token.Pass, task.Token.Position}] = n
		}
		finished = task
	}
}

// unexpected returns nil for the errors of a master that dies or resigns: a broken connection and "not the leader".
func unexpected(err error) error {
	if _, answered := errors.AsType[rpc.ServerError](err); answered && !strings.HasPrefix(err.Error(), "not the leader") {
		return err
	}
	return nil
}

// read counts the records of a task.
func read(task taskqueue.Task) (n int, err error) {
	for _, chunk := range task.Chunks {
		file, err := recordio.Open(chunk.Path)
		if err != nil {
			return 0, err
		}
		for record, err := range file.Chunk(chunk.Index) {
			if err != nil {
				return 0, err
			}
			if len(record) == 0 {
				return 0, fmt.Errorf("empty record in %+v", chunk)
			}
			n++
		}
		if err := file.Close(); err != nil {
			return 0, err
		}
	}
	return n, nil
}

// Two plain net/rpc clients train a job to its end although the master is killed.
func TestPlainClients(t *testing.T) {
	t.Parallel()
	const passes = 40
	j := newJob(t)
	master := j.master("--passes", "40", "--task-timeout-min", "1h")
	term := j.awaitLeader(0)
	clients := []*plainClient{{j, map[taskPosition]int{}}, {j, map[taskPosition]int{}}}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var group sync.WaitGroup
	for _, c := range clients {
		group.Go(func() {
			for ctx.Err() == nil {
				addr, err := j.store.MasterAddr(ctx)
				if err != nil {
					t.Error(err)
					return
				}
				over, err := c.work(ctx, addr.Addr)
				if err != nil {
					t.Error(err)
				}
				if over || err != nil {
					return
				}
			}
		})
	}
	j.awaitMidPass(3)
	master.kill()
	master = j.master("--passes", "40", "--task-timeout-min", "1h")
	j.awaitLeader(term)
	group.Wait()
	if ctx.Err() != nil {
		t.Fatalf("the job has not ended after %v", patience)
	}
	master.wantExit(0)
	j.wantVerified(passes, tasksPerPass)
	for at, counted := range j.history().finished {
		if len(counted) != 1 {
			t.Errorf("%+v was counted %d times, expected once", at, len(counted))
		}
	}
	for pass := taskqueue.Pass(1); pass <= passes; pass++ {
		n := 0
		for position := range tasksPerPass {
			at := taskPosition{pass, position}
			n += max(clients[0].records[at], clients[1].records[at])
		}
		if n != j.data.Train.Records {
			t.Errorf("pass %d: the clients read %d different records, expected all %d", pass, n, j.data.Train.Records)
		}
	}
}
