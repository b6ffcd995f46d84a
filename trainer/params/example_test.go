package params_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/pserver"
	"trainmaster/pserver/pservertest"
	"trainmaster/trainer/params"
)

// exampleServers starts parameter servers in this process. A real job starts them with "master pserver".
func exampleServers(n int) (addrs []string, stop func()) {
	var running []func() error
	for i := range n {
		addr, stop, err := pservertest.Run(i, pserver.Config{})
		if err != nil {
			log.Fatal(err)
		}
		addrs, running = append(addrs, addr), append(running, stop)
	}
	return addrs, func() {
		for _, stop := range running {
			if err := stop(); err != nil {
				log.Fatal(err)
			}
		}
	}
}

// exampleClient returns the client of a trainer in an asynchronous job.
func exampleClient(ctx context.Context, servers []string, tables ...params.Table) *params.Client {
	client, err := params.Connect(ctx, params.Config{
		Addrs:       func(context.Context) ([]string, error) { return servers, nil }, // or etcdstore's Roster.Addrs
		Mode:        params.Async,
		Optimizer:   params.Optimizer{Kind: params.SGD, LearningRate: 0.5},
		Tables:      tables,
		Incarnation: 1, // Client.Incarnation of package trainer
		Log:         quiet(),
	})
	if err != nil {
		log.Fatal(err)
	}
	return client
}

// A trainer of an asynchronous job initializes the model, pushes a gradient and receives the updated parameters. Another trainer of
// the job receives them from Init.
func Example() {
	ctx := context.Background()
	servers, stop := exampleServers(2)
	defer stop()
	client := exampleClient(ctx, servers)
	defer client.Close()

	model := []params.Tensor{{Name: "weight", Shape: []int{2, 2}, Data: []float32{1, 2, 3, 4}}}
	if err := client.Init(ctx, model); err != nil {
		log.Print(err)
		return
	}
	gradients := []params.Tensor{{Name: "weight", Shape: []int{2, 2}, Data: []float32{1, 0, 0, 2}}}
	version, err := client.PushPull(ctx, 1, 1, gradients, model) // step 1, at the learning rate of the job
	if err != nil {
		log.Print(err)
		return
	}
	fmt.Println("version", version, model[0].Data)

	second := exampleClient(ctx, servers)
	defer second.Close()
	copied := []params.Tensor{{Name: "weight", Shape: []int{2, 2}, Data: make([]float32, 4)}}
	if err := second.Init(ctx, copied); err != nil {
		log.Print(err)
		return
	}
	fmt.Println("second trainer", copied[0].Data)
	// Output:
	// version 1 [0.5 2 3 3]
	// second trainer [0.5 2 3 3]
}

// exampleStep commits a step of one trainer on all servers. In a job, the leader makes this call after the trainers have reported
// their staged gradients with the method Staged of package trainer.
func exampleStep(ctx context.Context, servers []string, request *pb.CommitStepRequest) error {
	for _, addr := range servers {
		conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return err
		}
		_, err = pb.NewParameterServerClient(conn).CommitStep(ctx, request)
		if err := errors.Join(err, conn.Close()); err != nil {
			return err
		}
	}
	return nil
}

// A trainer of a synchronous job stages the sum of its gradients at a version. The servers divide the sums by the records of all
// trainers when the leader commits the step, and the trainer pulls the next version.
func ExampleClient_Stage() {
	ctx := context.Background()
	servers, stop := exampleServers(2)
	defer stop()
	client, err := params.Connect(ctx, params.Config{
		Addrs:     func(context.Context) ([]string, error) { return servers, nil },
		Mode:      params.Sync,
		Optimizer: params.Optimizer{Kind: params.SGD, LearningRate: 0.5},
		Ordinal:   1, Incarnation: 1, // of the session at the master
		Log: quiet(),
	})
	if err != nil {
		log.Print(err)
		return
	}
	defer client.Close()

	model := []params.Tensor{{Name: "weight", Shape: []int{2}, Data: []float32{1, 2}}}
	if err := client.Init(ctx, model); err != nil {
		log.Print(err)
		return
	}
	version, err := client.Pull(ctx, model, 0)
	if err != nil {
		log.Print(err)
		return
	}
	sums := []params.Tensor{{Name: "weight", Shape: []int{2}, Data: []float32{4, 8}}} // over 4 records
	if err := client.Stage(ctx, version, sums, 4); err != nil {
		log.Print(err)
		return
	}
	step := &pb.CommitStepRequest{Version: version + 1, Contributors: []*pb.StepContributor{{Ordinal: 1, Incarnation: 1, Records: 4}}}
	if err := exampleStep(ctx, servers, step); err != nil {
		log.Print(err)
		return
	}
	version, err = client.Pull(ctx, model, version+1) // waits for that version
	if err != nil {
		log.Print(err)
		return
	}
	fmt.Println("version", version, model[0].Data)
	// Output:
	// version 1 [0.5 1]
}

// A trainer updates rows of an embedding table and looks rows up. The gradients of a repeated id are summed.
func ExampleClient_Lookup() {
	ctx := context.Background()
	servers, stop := exampleServers(2)
	defer stop()
	client := exampleClient(ctx, servers, params.Table{Name: "users", Dim: 2, Init: params.Zeros})
	defer client.Close()

	if err := client.Init(ctx, []params.Tensor{{Name: "bias", Shape: []int{1}, Data: []float32{0}}}); err != nil {
		log.Print(err)
		return
	}
	gradients := []float32{1, 1, 2, 2, 1, 1} // one row for each id
	if err := client.PushRows(ctx, "users", 1, 1, []int64{7, 900, 7}, gradients); err != nil {
		log.Print(err)
		return
	}
	ids := []int64{900, 7, 8} // id 8 has no updates
	rows := make([]float32, 2*len(ids))
	if _, err := client.Lookup(ctx, "users", ids, rows, 0); err != nil {
		log.Print(err)
		return
	}
	for i, row := range slices.Collect(slices.Chunk(rows, 2)) {
		fmt.Println(ids[i], row)
	}
	// Output:
	// 900 [-1 -1]
	// 7 [-1 -1]
	// 8 [0 0]
}

// Scan reads all stored rows of a table, for example to export the table.
func ExampleClient_Scan() {
	ctx := context.Background()
	servers, stop := exampleServers(2)
	defer stop()
	client := exampleClient(ctx, servers, params.Table{Name: "users", Dim: 1, Init: params.Zeros})
	defer client.Close()

	if err := client.Init(ctx, []params.Tensor{{Name: "bias", Shape: []int{1}, Data: []float32{0}}}); err != nil {
		log.Print(err)
		return
	}
	if err := client.PushRows(ctx, "users", 1, 1, []int64{7, 900}, []float32{2, 4}); err != nil {
		log.Print(err)
		return
	}
	err := client.Scan(ctx, "users", func(ids []int64, values []float32) error {
		for i, id := range ids {
			fmt.Println(id, values[i:i+1])
		}
		return nil
	})
	if err != nil {
		log.Print(err)
	}
	// Unordered output:
	// 7 [-1]
	// 900 [-2]
}
