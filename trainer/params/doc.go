// Package params implements the trainer's client of the parameter servers: it initializes the parameters of the model, pulls them,
// and pushes or stages gradients, on all shards in parallel.
//
//	client, err := params.Connect(ctx, params.Config{Addrs: ..., Mode: params.Async, ...})
//	err = client.Init(ctx, parameters)                                      // one trainer sets them, the others receive them
//	version, err := client.PushPull(ctx, step, 1, gradients, parameters)    // async; Push returns no parameters
//
//	version, err := client.Pull(ctx, parameters, version)                   // sync: waits for that version,
//	err = client.Stage(ctx, version, gradientSums, records)                 // stages, then the master commits version+1
//
//	_, err = client.Lookup(ctx, "users", ids, rows, 0)                      // rows of a table of embeddings,
//	err = client.PushRows(ctx, "users", step, 1, ids, gradients)            // async
//	err = client.StageRows(ctx, "users", version, ids, sums, records)       // sync
//
// Gradients and parameters have the order, names and shapes of Init. In mode Async a gradient is the mean over the records of the
// batch. In mode Sync it is the sum, since the servers divide by the records of all contributors.
//
// # Guarantees
//
// A push is applied once, even if it is sent several times: the servers identify it by incarnation, step, and block or slot of a
// table. A step is sent only after every block of the previous step was acknowledged. If a call returns no error, every shard has
// acknowledged it. In mode Sync all blocks of a Pull have one version. A gradient with a NaN or an infinity is refused with the name
// of the tensor before any of it is sent.
//
// # Failure
//
// On the machine of the server, data goes through the unix domain socket of the server, or through TCP if the socket fails.
//
// If a server is lost, restarting or busy, a call waits: the client looks the addresses up, reconnects with jitter, and repeats
// unacknowledged requests. A restarted server has the parameters of its last checkpoint. The client pulls them and continues.
//
// A call returns an error if ctx ends or if a gradient is invalid. Other errors are ErrUninitialized (the server lost its parameters),
// ErrFenced (a newer incarnation of the trainer exists) and *StaleError (the gradient is too late). After an error the destination
// of a pull is undefined.
//
// A Client is not safe for concurrent use.
package params
