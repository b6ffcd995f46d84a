package taskqueue_test

import (
	"fmt"
	"log"

	"trainmaster/recordio"
	"trainmaster/taskqueue"
)

// A queue of two tasks is worked by one trainer. The caller stores the result of Ready before it sends an answer.
func Example() {
	queue := taskqueue.New("digits", [16]byte{1}, 1, taskqueue.Options{Passes: 1})
	apply := func(event taskqueue.Event) taskqueue.Answer {
		answer := queue.Apply(queue.Clock()+1, event)
		queue.Ready() // a master commits the state and the ledger entries here
		return answer
	}

	table := taskqueue.NewTable(1) // one chunk in each task
	chunks := []recordio.Index{{Size: 100, Records: 10, Layout: 1}, {Offset: recordio.HeaderSize + 100, Size: 100, Records: 10, Layout: 1}}
	if err := table.Add(taskqueue.File{Path: "/data/train", Size: 240}, chunks); err != nil {
		log.Fatal(err)
	}
	apply(&taskqueue.Report{Digest: [32]byte{9}, ReportID: "r", Table: table})
	session := apply(&taskqueue.Join{ID: "trainer-0"})

	request := &taskqueue.Request{Trainer: session.Ordinal, Incarnation: session.Incarnation, Want: true}
	for {
		request.Seq++
		request.Ack = request.Seq
		answer := apply(request)
		if answer.Kind != taskqueue.AnswerTask {
			fmt.Println("job ended:", answer.Kind == taskqueue.AnswerEnded)
			return
		}
		fmt.Println("task", answer.Index)
		request.Finished = []taskqueue.Result{{Token: answer.Token}}
	}
	// Output:
	// task 0
	// task 1
	// job ended: true
}
