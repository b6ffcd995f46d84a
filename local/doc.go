// Package local implements a whole job on one machine: an embedded etcd in this process, and
// masters, parameter servers and trainers as child processes.
//
// Trainers and parameter servers that die are started again by the rules for pods, which package podmanager
// has; masters without a limit, unless they fail. The run ends when the master exits: when all passes are done and its trainers
// have left. Then the model that the elected trainer saved is evaluated on the held-out
// records, which no other process opens.
//
// All files are in one directory: data, etcd, checkpoints, the model, and a log for each
// process. At the end, also after Ctrl-C, processes get SIGTERM in order (trainers, master,
// parameter servers), and SIGKILL if they do not exit.
package local
