// Command soak runs one job on real processes for as long as it is told, lets something real go wrong every few
// seconds, and proves at the end that nothing was lost, counted twice or stuck.
//
//	3 etcd members ◀─ a proxy each ─ 3 masters ◀─ a proxy each, but one ─ 5 processes of 4 trainers
//	      ▲  a proxy each
//	      └── peers
//
// The trainers are those of package trainer; they read their records, note each task in a journal before the master
// hears of it, and train nothing. What goes wrong is listed in faults.go: processes are killed, stopped and told to
// leave, connections are cut, answers lost, the store made slow. The order is drawn from a seed: the same seed draws the
// same faults, targets and times; what they meet is as it happens.
//
// # What is proved
//
// No process ends that was not made to, and the job never stands still for longer than stuckAfter. At the end all faults
// are over, the masters are told how many passes there shall be, and the job ends by itself. Then
//
//   - `master verify` finds every task of every pass counted once, and the ledger at one with the state;
//   - the ledger, read again here, has no finish twice, and each finish is in the journal of the trainer it names;
//   - goroutines, memory and open files of the master that lives through all, and etcd's database, were flat (flat.go).
//
// # Failure behaviour
//
// A soak that fails keeps its folder, with the log of every process and the journals, and says where it is. Ctrl-C ends
// it in order. It ends only processes that it started, and they end with it, however it ends (on Linux).
package main
