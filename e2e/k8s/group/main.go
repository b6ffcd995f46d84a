// Command group trains in a group of pods of the tests on Kubernetes. Rank 0 takes tasks of the master at the address in its argument, and sends each
// to the other ranks, which it finds by the variables of PyTorch. It finishes the task when all have answered.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"trainmaster/taskqueue"
	"trainmaster/trainer"
)

const (
	end      = "end\n"
	patience = time.Minute            // for the other ranks
	work     = 100 * time.Millisecond // of a task
)

func main() {
	rank, err := strconv.Atoi(os.Getenv("RANK"))
	size, err2 := strconv.Atoi(os.Getenv("WORLD_SIZE"))
	if err = errors.Join(err, err2); err == nil && rank == 0 {
		err = lead(context.Background(), size)
	} else if err == nil {
		err = follow(net.JoinHostPort(os.Getenv("MASTER_ADDR"), os.Getenv("MASTER_PORT")), rank)
	}
	if err != nil {
		log.Fatal(err)
	}
}

// lead trains tasks until the job has ended.
func lead(ctx context.Context, size int) error {
	peers, err := accept(size - 1)
	if err != nil {
		return err
	}
	client, err := trainer.Join(ctx, trainer.Config{ID: os.Getenv("TRAINMASTER_ID"), Job: os.Getenv("TRAINMASTER_JOB"), Locate: trainer.At(os.Args[1])})
	if err != nil {
		return err
	}
	defer client.Close()
	var task *taskqueue.Task
	for {
		if task, err = client.Next(ctx, task); errors.Is(err, io.EOF) {
			return each(peers, end)
		} else if err != nil {
			return err
		}
		time.Sleep(work) // a job of some seconds
		if err := each(peers, fmt.Sprintln(task.Index)); err != nil {
			return err
		}
	}
}

// accept waits for the other ranks.
func accept(n int) (peers []*bufio.ReadWriter, err error) {
	l, err := net.Listen("tcp", ":"+os.Getenv("MASTER_PORT"))
	if err != nil {
		return nil, err
	}
	defer l.Close()
	for range n {
		conn, err := l.Accept()
		if err != nil {
			return nil, err
		}
		peers = append(peers, bufio.NewReadWriter(bufio.NewReader(conn), bufio.NewWriter(conn)))
	}
	return peers, nil
}

// each sends a line to all other ranks, and waits for their answers.
func each(peers []*bufio.ReadWriter, line string) error {
	for rank, peer := range peers {
		if _, err := peer.WriteString(line); err != nil {
			return err
		}
		if err := peer.Flush(); err != nil {
			return err
		}
		if answer, err := peer.ReadString('\n'); err != nil || answer != line {
			return fmt.Errorf("peer %d: expected %q, found %q: %w", rank, line, answer, err)
		}
	}
	return nil
}

// follow answers rank 0 until the end.
func follow(address string, rank int) error {
	var conn net.Conn
	var err error
	for until := time.Now().Add(patience); ; {
		if conn, err = net.Dial("tcp", address); err == nil {
			break
		}
		if time.Now().After(until) {
			return err
		}
		time.Sleep(100 * time.Millisecond) // between two attempts
	}
	defer conn.Close()
	lines := bufio.NewReader(conn)
	for tasks := 0; ; tasks++ {
		line, err := lines.ReadString('\n')
		if err != nil {
			return fmt.Errorf("rank %d: rank 0 after %d tasks: %w", rank, tasks, err)
		}
		if _, err := io.WriteString(conn, line); err != nil {
			return err
		}
		if line == end {
			log.Printf("rank %d: %s of %s after %d tasks", rank, strings.TrimSpace(line), address, tasks)
			return nil
		}
	}
}
