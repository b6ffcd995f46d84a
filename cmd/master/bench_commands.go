package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"trainmaster/cmd/internal/cli"
	"trainmaster/local/bench"
	"trainmaster/recordio/tool"
	"trainmaster/trainer"
)

func benchFailoverCommand() *cobra.Command {
	var b bench.Failover
	cmd := &cobra.Command{
		Use:   "failover",
		Short: "Measure the failover time of a job",
		Long: `Bench failover runs etcd, two masters and a trainer as processes, and makes the leader resign (SIGTERM), die (SIGKILL) or hang
(SIGSTOP) repeatedly. The time counts from the signal to the next task that the trainer gets. Between two faults it
waits for the end of the holddown, in which no second takeover can be forced. With server-kill, server-restart and server-hang the only
parameter server is killed or hangs, and the time counts to the reply to the next push: with a standby, or with a process that is started 100 ms later.`,
		Example: `  master bench failover --mode kill -n 200 -o json
  master bench failover --mode hang -n 20 --holddown 2s
  # a parameter server is killed, and a standby takes its index
  master bench failover --mode server-kill -n 100`,
	}
	flags := cmd.Flags()
	mode := cli.AddChoice(cmd, "mode", "", "how the leader goes, or a parameter server fails", bench.Resign, bench.Kill, bench.Hang, bench.ServerKill, bench.ServerRestart, bench.ServerHang)
	flags.DurationVar(&b.TTL, "ps-ttl", 10*time.Second, "of the parameter servers' leases, at least 1s")
	flags.IntVarP(&b.N, "number", "n", 20, "how `often`")
	flags.DurationVar(&b.Holddown, "holddown", 10*time.Second, "of the masters, at least 2s")
	addBenchDir(cmd, &b.Folder, forEtcd)
	check := func() error {
		b.Mode = *mode
		return dashed(b.Validate())
	}
	return benchmark(cmd, &b.Setup, check, b.Run)
}

func benchReconnectCommand() *cobra.Command {
	var b bench.Reconnect
	cmd := &cobra.Command{
		Use:   "reconnect",
		Short: "Measure a failover with thousands of trainers",
		Long: `Bench reconnect runs etcd, two masters and a process with many trainers, which all hold a session and a connection and work
slowly. Then the leader dies (SIGKILL) or hangs (SIGSTOP). It measures how long it takes until the next leader has answered
every trainer, how long GetTask takes before the fault and from five seconds after it, and the leader's memory; and it
compares the finishes that were acknowledged with the ledger: none may be lost, and none counted twice.

The process of the trainers and the leader need a connection for each trainer: the limit of open files (ulimit -Hn) must be
500 above their number.`,
		Example: `  master bench reconnect --trainers 10000 -o json
  master bench reconnect --trainers 200 --task-time 1s --mode hang`,
	}
	flags := cmd.Flags()
	mode := cli.AddChoice(cmd, "mode", "", "how the leader goes", bench.Kill, bench.Hang)
	protocol := addProtocol(cmd)
	flags.IntVar(&b.Trainers, "trainers", 10_000, "how `many`")
	flags.DurationVar(&b.TaskTime, "task-time", 10*time.Second, "of a task, on average")
	flags.DurationVar(&b.Window, "window", 5*time.Second, "over which latencies are gathered, before and after")
	addBenchDir(cmd, &b.Folder, forEtcd)
	check := func() error {
		b.Mode, b.Protocol = *mode, trainer.Protocol(*protocol)
		return dashed(b.Validate())
	}
	return benchmark(cmd, &b.Setup, check, b.Run)
}

func benchRecoveryCommand() *cobra.Command {
	var b bench.Recovery
	cmd := &cobra.Command{
		Use:   "recovery",
		Short: "Measure how long a new leader takes to its first answer",
		Long: `Bench recovery registers a dataset of many files of 1,000 chunks each, a chunk a task, with sizes from a seeded log-normal
distribution. Then fresh processes, one after the other, campaign for the lock, recover the state from etcd and give out a
task. The time counts from the lock won to that answer; heap_bytes is what is live after it.`,
		Example: `  master bench recovery --tasks 10000000 -o json`,
	}
	flags := cmd.Flags()
	flags.IntVar(&b.Tasks, "tasks", 10_000_000, "`tasks` of the dataset")
	flags.IntVar(&b.Rounds, "rounds", 5, "`times` that the state is recovered; the median counts")
	flags.StringVar(&b.Profile, "cpuprofile", "", "`file` for a profile of the last recovery, for go tool pprof")
	addBenchDir(cmd, &b.Folder, forEtcd)
	return benchmark(cmd, &b.Setup, b.Validate, b.Run)
}

func benchPSCommand() *cobra.Command {
	var b bench.PS
	cmd := &cobra.Command{
		Use:   "ps",
		Short: "Measure what parameter servers cost",
		Long: `Bench ps pushes the gradients of a model to parameter servers and gets its parameters back, between processes of this machine,
and reports the processor time of all of them for each GB: 10^9 bytes of float32, both directions counted, also where
bfloat16 carries them. In turns with it the same is measured in memory, as a limit, and by gRPC with a field of bytes and
net/rpc with []float32, over TCP. Then come more servers and trainers, by the unix socket and over TCP, with float32 and
bfloat16; the time of a step while checkpoints are written, and between them; the optimizers alone, against a copy of the arrays that they work on; and a table of embeddings on one server,
rows of 16 floats, by one trainer over the unix socket.`,
		Example: `  master bench ps -o json
  master bench ps --mib 20 --runs 3 --shards 1 --trainers 1,4 --most-rows 1000000`,
	}
	flags := cmd.Flags()
	flags.IntVar(&b.MiB, "mib", 100, "size of the model in `MiB`")
	flags.IntVar(&b.Steps, "steps", 60, "`steps` during checkpoints in each of the runs, and as many between them")
	flags.IntVar(&b.TableMiB, "table-mib", 1000, "size in `MiB` of the embedding table during checkpoints (0 = none)")
	flags.IntVar(&b.Rows, "rows", 1_000_000, "`rows` of a table of embeddings while lookups and updates are measured")
	flags.IntVar(&b.MostRows, "most-rows", 10_000_000, "`rows` of it while memory is measured; a row takes about 85 bytes")
	flags.IntVar(&b.Runs, "runs", 5, "`times` that each measurement is repeated; the median counts")
	flags.IntSliceVar(&b.Shards, "shards", []int{1, 2, 4}, "`numbers` of parameter servers")
	flags.IntSliceVar(&b.Trainers, "trainers", []int{1, 2, 4}, "`numbers` of trainers, with each number of servers")
	addBenchDir(cmd, &b.Folder, "for the checkpoints, on a real disk (default that of temporary files)")
	return benchmark(cmd, &b.Setup, func() error { return dashed(b.Validate()) }, b.Run)
}

func benchRecordioCommand() *cobra.Command {
	var b tool.Bench
	cmd := &cobra.Command{
		Use:   "recordio",
		Short: "Measure writing, scanning and indexing of RecordIO files",
		Long: `Bench recordio writes files of 1 KB records of text, scans them with every checksum verified and every record split off,
and lists and indexes many files of many chunks, all of it from and to the page cache. Speeds are per second of processor time,
user and system, of this process, and per second of the clock.`,
		Example: `  master bench recordio
  master bench recordio -o json --files 10000 --chunks-per-file 64`,
	}
	flags := cmd.Flags()
	flags.IntVar(&b.Records, "records", 256<<10, "`records` of 1 KB to write and scan")
	flags.IntVar(&b.Runs, "runs", 5, "`times` that each measurement is repeated; the median counts")
	flags.IntVar(&b.Files, "files", 10_000, "`files` to index")
	flags.IntVar(&b.ChunksPerFile, "chunks-per-file", 64, "`chunks` of one record in each of them")
	addBenchDir(cmd, &b.Folder, "for the files, removed afterwards (default a temporary one)")
	return benchmark(cmd, nil, b.Validate, b.Run)
}

func benchDataCommand() *cobra.Command {
	var b bench.Data
	cmd := &cobra.Command{
		Use:   "data",
		Short: "Measure reading of files, through a data proxy, and of objects",
		Long: `Bench data writes files of 1 KB records of text, and reads them in turns: directly with all checksums, through a data proxy in
this process, and for the index of a master. With --store, it also reads objects of a store, in turns with and without a delay of
each request. Objects are read as they are: write them with recordio convert and a tool of the store.`,
		Example: `  master bench data
  master bench data -o json --records 65536
  # objects of a store with the S3 protocol
  master bench data --store 's3://bucket/train/*?endpoint=http://10.0.0.1:9000' --store-delay 20ms`,
	}
	flags := cmd.Flags()
	flags.IntVar(&b.Records, "records", 256<<10, "`records` of 1 KB in each file")
	flags.IntVar(&b.Runs, "runs", 5, "`times` that each measurement is repeated; the median counts")
	flags.StringVar(&b.Store, "store", "", "`URL` of objects, with endpoint=http://host:port (default: none)")
	flags.DurationVar(&b.StoreDelay, "store-delay", 20*time.Millisecond, "`delay` of each request to the store in half of the runs")
	addBenchDir(cmd, &b.Folder, "for the files, removed afterwards (default a temporary one)")
	return benchmark(cmd, nil, func() error { return dashed(b.Validate()) }, b.Run)
}

func benchQueueCommand() *cobra.Command {
	var b bench.Queue
	var vias []string
	var seconds float64
	cmd := &cobra.Command{
		Use:   "queue",
		Short: "Measure the dispatch rate against etcd's own",
		Long: `Bench queue measures how many tasks a master dispatches per second, each answer durable in etcd before it is sent. An op is one
request that finishes a counted task and gets the next task. Each row also has the raw rate: one transaction after the
other, under the same lock compares, over the same connection, with a value of the size of the master's state.

Etcd runs in a process of its own with its default flags; so do the trainers, but for inproc. Rounds go through all rows in
turns; medians count. literal is the baseline that keeps the lists of all tasks and writes all of them on every change, with
gob and gzip of the standard library; literal-shared is the same with this program's own encoder.`,
		Example: `  master bench queue --via inproc --callers 1,16,64,256,1024
  master bench queue --via netrpc --callers 1,16,64,256 --etcd-delay 2ms -o json
  # gRPC against net/rpc
  master bench queue --via netrpc,grpc,grpc-two-calls,stream --callers 1,16,64,256
  # against the baseline
  master bench queue --via netrpc,literal --callers 64 --tasks 100,1000,10000,100000
  # whatever the number of tasks
  master bench queue --via inproc --callers 16 --tasks 1000,10000000`,
	}
	flags := cmd.Flags()
	flags.StringSliceVar(&vias, "via", []string{string(bench.InProcess), string(bench.NetRPC)}, "`how` trainers reach the queue, a list: inproc, netrpc, netrpc-plain, stream. Unary calls: grpc (one call) and grpc-two-calls. Baselines: literal and literal-shared")
	flags.IntSliceVar(&b.Callers, "callers", []int{1, 16, 64, 256}, "`trainers`; a list")
	flags.IntSliceVar(&b.Tasks, "tasks", []int{100_000}, "`tasks` of the dataset; a list")
	flags.Float64Var(&seconds, "seconds", 1, "`length` of one measurement")
	flags.IntVar(&b.Rounds, "rounds", 5, "`times` that each row is measured; the median counts")
	flags.DurationVar(&b.EtcdDelay, "etcd-delay", 0, "add rows with a proxy before etcd that delays by so much, for a disk that is too fast")
	flags.BoolVar(&b.OpenRound, "open-round", false, "add rows with an open evaluation round and idle evaluation tasks")
	cli.CompleteWords(cmd, "via", viaWords())
	profile := flags.String("cpuprofile", "", "`file` for a profile of the master's process, for go tool pprof")
	addBenchDir(cmd, &b.Folder, forEtcd)
	check := func() error {
		for _, via := range vias {
			b.Vias = append(b.Vias, bench.Via(via))
		}
		b.Length = time.Duration(seconds * float64(time.Second))
		return b.Validate()
	}
	run := func(ctx context.Context) (figures bench.QueueFigures, err error) {
		err = profiled(*profile, func() error {
			figures, err = b.Run(ctx)
			return err
		})
		return figures, err
	}
	return benchmark(cmd, &b.Setup, check, run)
}

func viaWords() []string {
	words := make([]string, len(bench.Vias))
	for i, via := range bench.Vias {
		words[i] = string(via)
	}
	return words
}
