// Package params is the trainer's side of the parameter servers: it initializes
// the model's parameters, pulls them, and pushes or stages gradients, on all
// shards at once.
//
//	client, err := params.Connect(ctx, params.Config{Addrs: ..., Mode: params.Async, ...})
//	err = client.Init(ctx, parameters)                                      // one trainer gives them, the others get them
//	version, err := client.PushPull(ctx, step, 1, gradients, parameters)    // async; Push leaves the parameters out
//
//	version, err := client.Pull(ctx, parameters, version)                   // sync: waits for that version,
//	err = client.Stage(ctx, version, gradientSums, records)                 // stages, then the master commits version+1
//
//	_, err = client.Lookup(ctx, "users", ids, rows, 0)                      // rows of a table of embeddings,
//	err = client.PushRows(ctx, "users", step, 1, ids, gradients)            // async
//	err = client.StageRows(ctx, "users", version, ids, sums, records)       // sync
//
// Gradients and parameters are given in the same order, with the same names
// and shapes, as at Init. In mode Async a gradient is the mean over the
// records of the batch; in mode Sync it is the sum, since the servers divide by
// the records of all contributors.
//
// # Guarantees
//
// A push is applied once, however often it had to be sent: the servers know it
// by (incarnation, step, block or slot of a table), and a step is sent only after every block of
// the one before was acknowledged. What a call returns without an error is
// acknowledged by every shard. In mode Sync all blocks that Pull returns are of
// one version. A gradient with a NaN or an infinity is refused before any of it
// is sent, with the tensor's name.
//
// # Failure
//
// On the server's machine the data goes through its unix domain socket, if there
// is a way to it that leads to that very server, else over TCP.
//
// A server that is lost, restarting or busy is a pause, not an error: the
// client looks the addresses up again, reconnects with jitter and sends again
// what was not acknowledged. A restarted server has the parameters of its last
// checkpoint: the client pulls them anew and goes on. A call returns an error
// when ctx ends, when a gradient is refused for what it is, when the server
// lost its parameters (ErrUninitialized), when this incarnation is over
// (ErrFenced), or when a gradient comes too late (*StaleError). After an
// error the destination of a pull may hold a mixture.
//
// A Client is used by one goroutine at a time.
package params
