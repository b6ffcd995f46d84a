// Command hang is a trainer of the tests on Kubernetes. It takes tasks of the master at the address in its argument. In its ninth task it hangs, and its
// client still sends heartbeats.
package main

import (
	"context"
	"errors"
	"io"
	"log"
	"os"

	"trainmaster/taskqueue"
	"trainmaster/trainer"
)

const finishes = 8

func main() {
	if err := work(context.Background()); !errors.Is(err, io.EOF) {
		log.Fatal(err)
	}
}

func work(ctx context.Context) error {
	client, err := trainer.Join(ctx, trainer.Config{ID: os.Getenv("TRAINMASTER_ID"), Job: os.Getenv("TRAINMASTER_JOB"), Locate: trainer.At(os.Args[1])})
	if err != nil {
		return err
	}
	defer client.Close()
	var task *taskqueue.Task
	for n := 0; ; n++ {
		if task, err = client.Next(ctx, task); err != nil {
			return err
		}
		if n == finishes {
			select {} // hangs
		}
	}
}
