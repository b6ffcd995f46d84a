// Trainer is an example of a training program that trains on the tasks of a job. README.md in the same directory explains it.
package main

import (
	"context"
	"errors"
	"io"
	"log"
	"os"
	"os/signal"
	"syscall"

	"trainmaster/taskqueue"
	"trainmaster/trainer"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := trainer.ErrSessionLost
	for errors.Is(err, trainer.ErrSessionLost) { // its tasks went to other trainers: join again
		err = work(ctx, new(perceptron))
	}
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, trainer.ErrDrained) && ctx.Err() == nil {
		log.Fatal(err) // exit code 1: `master run` does not start this trainer again
	}
}

// work trains tasks until the job has ended: then Next returns io.EOF.
func work(ctx context.Context, model *perceptron) error {
	client, err := trainer.Join(ctx, trainer.Config{
		ID: os.Getenv("TRAINMASTER_TRAINER"), Job: os.Getenv("TRAINMASTER_JOB"), Locate: trainer.At(os.Getenv("TRAINMASTER_ADDR")),
		Protocol: trainer.Protocol(os.Getenv("TRAINMASTER_PROTOCOL")), // "" is gRPC
	})
	if err != nil {
		return err
	}
	defer client.Close()
	var task *taskqueue.Task
	for {
		if task, err = client.Next(ctx, task); err != nil { // reports the previous task and waits for the next task
			return err
		}
		mistakes, err := model.train(client.Records(task))
		if err != nil { // the task goes to another trainer; after several failures it is set aside
			if err := client.Fail(ctx, task, err); err != nil {
				return err
			}
			task = nil
			continue
		}
		client.Progressed(model.records, mistakes)
	}
}
