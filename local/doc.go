// Package local runs a whole job on this machine: an embedded etcd in this process, and a
// master, parameter servers and trainers as real processes beside it.
//
// A process that dies is started again, after a pause that grows; one that dies again and
// again ends the run. The run is over when the master is: it exits when all passes are done
// and its trainers heard of it. Then the model that the elected trainer saved is evaluated
// on the held-out records, which nothing else opens.
//
// Everything is under one directory: data, etcd, checkpoints, the model, and a log for each
// process. On the way out, also by Ctrl-C, processes get SIGTERM in order (trainers, master,
// parameter servers), and SIGKILL when they do not go.
package local
