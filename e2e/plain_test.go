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

// plainClient is a trainer that knows nothing of this project but the two methods of the documented minimum, three types
// and the file format.
type plainClient struct {
	j       *job
	records map[place]int // read of each task
}

// work takes tasks from one master until the job is over, which is true, or the master is gone, or ctx ends.
func (c *plainClient) work(ctx context.Context, addr string) (over bool, err error) {
	client, err := rpc.DialHTTP("tcp", addr)
	if err != nil {
		return false, nil // the next master has another address
	}
	stop := context.AfterFunc(ctx, func() { _ = client.Close() }) // ends the call under way
	defer stop()
	defer func() { _ = client.Close() }() // may have been closed by the master
	var dummy int
	if err := client.Call("RPCServer.ReportDataset", c.j.data.Train.Paths, &dummy); err != nil {
		return false, gone(err)
	}
	finished := taskqueue.Task{}
	for {
		var task taskqueue.Task
		switch err := client.Call("RPCServer.GetTask", &finished, &task); {
		case err == nil:
		case strings.HasPrefix(err.Error(), "job finished: "):
			return true, nil
		default:
			return false, gone(err)
		}
		if len(task.Chunks) > 0 { // else there is nothing to be had yet
			n, err := read(task)
			if err != nil {
				return false, err
			}
			c.records[place{task.Token.Pass, task.Token.Position}] = n
		}
		finished = task
	}
}

// gone is nil for what a client must expect of a master that dies or hands over: a broken connection, or that it does not
// lead.
func gone(err error) error {
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
				return 0, fmt.Errorf("an empty record in %+v", chunk)
			}
			n++
		}
		if err := file.Close(); err != nil {
			return 0, err
		}
	}
	return n, nil
}

// Two plain net/rpc clients do a whole job, over the death of a master.
func TestPlainClients(t *testing.T) {
	t.Parallel()
	const passes = 40
	j := newJob(t)
	master := j.master("--passes", "40", "--task-timeout-min", "1h")
	term := j.awaitLeader(0)
	clients := []*plainClient{{j, map[place]int{}}, {j, map[place]int{}}}
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
		t.Fatalf("the job is not over after %v", patience)
	}
	master.wantExit(0)
	j.wantVerified(passes, tasksPerPass)
	for place, counted := range j.history().finished {
		if len(counted) != 1 {
			t.Errorf("%+v was counted %d times, expected once", place, len(counted))
		}
	}
	for pass := taskqueue.Pass(1); pass <= passes; pass++ {
		n := 0
		for position := range tasksPerPass {
			at := place{pass, position}
			n += max(clients[0].records[at], clients[1].records[at])
		}
		if n != j.data.Train.Records {
			t.Errorf("pass %d: the clients read %d different records, expected all %d", pass, n, j.data.Train.Records)
		}
	}
}
