package trainer_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"

	"trainmaster/taskqueue"
	"trainmaster/trainer"
)

// A trainer joins the master at an address, takes tasks, and trains their records until the job ends. The example needs a
// running master, so it has no output.
func Example() {
	ctx := context.Background()
	client, err := trainer.Join(ctx, trainer.Config{ID: "trainer-0", Locate: trainer.At("127.0.0.1:8080")})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	if err := client.ReportDataset(ctx, []string{"/data/train-*"}); err != nil {
		log.Print(err)
		return
	}
	var done *taskqueue.Task // reported as finished by the next call
	for {
		task, err := client.Next(ctx, done)
		if errors.Is(err, io.EOF) || errors.Is(err, trainer.ErrDrained) {
			return // the job has ended, or an operator drained this trainer
		}
		if err != nil {
			log.Print(err)
			return
		}
		for record, err := range client.Records(task) {
			if err != nil {
				log.Print(err) // a trainer with damaged records calls Fail and continues
				return
			}
			fmt.Println(len(record), "bytes")
		}
		done = task
	}
}

// A trainer ends the work on a task that the master has stopped, and continues with another one.
func ExampleClient_UntilStopped() {
	ctx := context.Background()
	client, err := trainer.Join(ctx, trainer.Config{ID: "trainer-0", Locate: trainer.At("127.0.0.1:8080")})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	train := func(context.Context, *taskqueue.Task) error { return nil } // returns early when its context ends
	var done *taskqueue.Task
	for {
		task, err := client.Next(ctx, done)
		if err != nil {
			return
		}
		running, release := client.UntilStopped(ctx, task)
		err = train(running, task)
		stopped := errors.Is(context.Cause(running), trainer.ErrStopped)
		release()
		switch {
		case stopped:
			done = nil
		case err != nil:
			log.Print(err)
			return
		default:
			done = task
		}
	}
}
