package e2e

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"trainmaster/dataset"
	"trainmaster/dataset/convert"
	"trainmaster/etcdstore"
	"trainmaster/etcdstore/etcdtest"
	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/recordio"
	"trainmaster/testdata"
	"trainmaster/trainer/reference"
)

// job is a job of processes in the etcd of this test binary.
type job struct {
	t        testing.TB
	name     string
	endpoint string
	store    *etcdstore.Store
	dir      string
	bucket   string // URL for checkpoints; "": a directory in dir
	data     convert.Result
	conn     *grpc.ClientConn // connection to the master at connTo
	connTo   string
}

// Size of the digits dataset in these tests: 1,437 training records, one chunk per task.
const (
	recordsPerChunk = 20
	tasksPerPass    = 72
	shards          = 4
)

// newJob prepares a job: a name in etcd and files with the digits.
func newJob(t testing.TB) *job {
	t.Helper()
	return newJobOn(t, etcdtest.Endpoint(t))
}

// newJobOn prepares a job in the given etcd.
func newJobOn(t testing.TB, endpoints ...string) *job {
	t.Helper()
	j := &job{t: t, name: etcdtest.NewJob(t), endpoint: strings.Join(endpoints, ","), dir: t.TempDir()}
	j.store = etcdtest.Open(t, j.endpoint, j.name)
	j.data = digits(t, j.dir)
	j.closeAtEnd()
	return j
}

func (j *job) closeAtEnd() {
	j.t.Cleanup(func() {
		if j.conn != nil {
			_ = j.conn.Close() // may be closed
		}
	})
}

// another returns another job in the same etcd, with the same data and a directory of its own.
func (j *job) another() *job {
	other := &job{t: j.t, name: etcdtest.NewJob(j.t), endpoint: j.endpoint, dir: j.t.TempDir(), data: j.data}
	other.store = etcdtest.Open(j.t, j.endpoint, other.name)
	other.closeAtEnd()
	return other
}

// digits writes the digits to dir. A fifth of the records is held out.
func digits(t testing.TB, dir string) convert.Result {
	t.Helper()
	data, err := convert.CSV(t.Context(), strings.NewReader(string(testdata.Digits)), convert.Options{
		Prefix: filepath.Join(dir, "data", "digits"), Shards: shards, RecordsPerChunk: recordsPerChunk, Compression: recordio.Snappy, HeldOut: 0.2, Seed: 1,
	})
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// useFlights selects the flights dataset, with categorical features, and returns the number of tasks per pass.
func (j *job) useFlights() (tasks int) {
	j.t.Helper()
	const perChunk = 200
	var err error
	if j.data, err = convert.Categorical(j.t.Context(), bytes.NewReader(testdata.Flights), convert.Options{
		Prefix: filepath.Join(j.dir, "data", "flights"), Shards: shards, RecordsPerChunk: perChunk, Compression: recordio.Snappy, HeldOut: 0.2, Seed: 1, LabelAbove: new(15.0),
	}); err != nil {
		j.t.Fatal(err)
	}
	return j.data.Train.Records / perChunk
}

// behind returns the job for processes that reach etcd through a proxy.
func (j *job) behind(proxy *etcdtest.Proxy) *job {
	other := *j
	other.endpoint, other.conn, other.connTo = proxy.Endpoint(), nil, ""
	return &other
}

// in appends the flags that select this job.
func (j *job) in(args ...string) []string {
	return append(args, "--endpoints", j.endpoint, "--job", j.name)
}

// master starts a master with the shortest lease that etcd grants, two seconds.
func (j *job) master(args ...string) *process {
	j.t.Helper()
	return start(j.t, "master", j.dir, append(j.in("--listen", "127.0.0.1:0", "--http", "", "--lease-ttl", "2s", "--chunks-per-task", "1", "--checkpoint-every", "250ms"), args...)...)
}

func (j *job) checkpoints() string { return cmp.Or(j.bucket, filepath.Join(j.dir, "checkpoints")) }

// shortLease are the flags of a parameter server that the test kills or pauses: its successor may wait for its lease.
var shortLease = []string{"--ps-ttl", "5s"}

// server starts a parameter server with a lease that does not expire on a busy machine.
func (j *job) server(args ...string) *process {
	j.t.Helper()
	return start(j.t, "pserver", j.dir, append(j.in("pserver", "--ps-ttl", "60s", "--checkpoint-dir", j.checkpoints()), args...)...)
}

func (j *job) journal() string { return filepath.Join(j.dir, "journal.jsonl") }
func (j *job) model() string   { return filepath.Join(j.dir, "model.safetensors") }

// trainer starts a trainer on the digits.
func (j *job) trainer(id string, args ...string) *process {
	j.t.Helper()
	return j.trainerOn(id, j.data.Train.Paths, args...)
}

func (j *job) trainerOn(id string, paths []string, args ...string) *process {
	j.t.Helper()
	return start(j.t, id, j.dir, append(j.in("trainer", "--id", id, "--data", strings.Join(paths, ","),
		"--journal", j.journal(), "--save-model", j.model(), "--record-delay", "1ms"), args...)...)
}

// leader returns a client of the current leader.
func (j *job) leader() (pb.AdminClient, error) {
	addr, err := j.store.MasterAddr(j.t.Context())
	if err != nil {
		return nil, err
	}
	if addr.Addr == "" {
		return nil, errors.New("no leader is announced")
	}
	if addr.Addr != j.connTo {
		if j.conn != nil {
			_ = j.conn.Close() // may be closed
		}
		if j.conn, err = grpc.NewClient("passthrough:///"+addr.Addr, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy()); err != nil {
			return nil, err
		}
		j.connTo = addr.Addr
	}
	return pb.NewAdminClient(j.conn), nil
}

// awaitStatus waits until the leader's status meets the condition. Each request has a limit of one second, because the leader may hang.
func (j *job) awaitStatus(what string, condition func(*pb.StatusReply) bool) *pb.StatusReply {
	j.t.Helper()
	return j.awaitSlowStatus(time.Second, what, condition)
}

// awaitSlowStatus is awaitStatus with another limit for each request. With a slow store, an answer waits for a commit.
func (j *job) awaitSlowStatus(patience time.Duration, what string, condition func(*pb.StatusReply) bool) *pb.StatusReply {
	j.t.Helper()
	var s *pb.StatusReply
	eventually(j.t, what, func() (bool, string) {
		leader, err := j.leader()
		if err != nil {
			return false, err.Error()
		}
		ctx, cancel := context.WithTimeout(j.t.Context(), patience)
		defer cancel()
		if s, err = leader.Status(ctx, &pb.StatusRequest{Job: j.name}); err != nil {
			return false, err.Error()
		}
		return condition(s), s.String()
	})
	return s
}

// awaitLeader waits for a leader with a term after the given term, and returns its term.
func (j *job) awaitLeader(before uint64) uint64 {
	j.t.Helper()
	return j.awaitStatus("a master leads", func(s *pb.StatusReply) bool { return s.Term > before }).Term
}

// awaitMidPass waits for the middle of the given pass or of a later pass: some tasks are counted, some are pending, and some
// are still to do.
func (j *job) awaitMidPass(pass uint32) *pb.StatusReply {
	j.t.Helper()
	return j.awaitStatus(fmt.Sprintf("the middle of pass %d or a later one", pass), func(s *pb.StatusReply) bool {
		if len(s.Datasets) == 0 {
			return false
		}
		d := s.Datasets[0]
		return d.Pass >= pass && d.Done > 0 && d.Pending > 0 && d.Todo > d.Tasks/4
	})
}

// trainers returns the sessions of the leader by trainer id.
func (j *job) trainers() (map[string]*pb.TrainerEntry, error) {
	leader, err := j.leader()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(j.t.Context(), time.Second)
	defer cancel()
	list, err := leader.ListTrainers(ctx, &pb.ListTrainersRequest{Job: j.name})
	if err != nil {
		return nil, err
	}
	byID := map[string]*pb.TrainerEntry{}
	for _, entry := range list.Trainers {
		byID[entry.Id] = entry
	}
	return byID, nil
}

// awaitTrainer waits until the session of a trainer meets the condition. The session is nil if the trainer has none.
func (j *job) awaitTrainer(id, what string, condition func(*pb.TrainerEntry) bool) {
	j.t.Helper()
	eventually(j.t, id+" "+what, func() (bool, string) {
		sessions, err := j.trainers()
		if err != nil {
			return false, err.Error()
		}
		return condition(sessions[id]), fmt.Sprint(sessions)
	})
}

// accuracy returns the share of held-out records that the saved model classifies correctly.
func (j *job) accuracy() float64 {
	j.t.Helper()
	return accuracy(j.t, j.model(), j.data.Test.Paths)
}

func accuracy(t testing.TB, modelPath string, test []string) float64 {
	t.Helper()
	saved, err := reference.ReadSaved(modelPath)
	if err != nil {
		t.Fatal(err)
	}
	m, err := saved.Model()
	if err != nil {
		t.Fatal(err)
	}
	e, err := reference.Evaluate(m, saved.Tensors, saved.RowsOf, records(test))
	if err != nil {
		t.Fatal(err)
	}
	if e.Records == 0 {
		t.Fatalf("no records in %q", test)
	}
	return e.Accuracy()
}

// wantAccuracy fails the test unless the accuracy of the saved model is at least least.
func (j *job) wantAccuracy(least float64) {
	j.t.Helper()
	if found := j.accuracy(); found < least {
		j.t.Errorf("accuracy %.4f on the held-out records, expected at least %.2f", found, least)
	}
}

// records iterates over the records of files.
func records(paths []string) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		for _, path := range paths {
			file, err := dataset.Open(path)
			if err != nil {
				yield(nil, err)
				return
			}
			for record, err := range file.Records() {
				if !yield(record, err) {
					_ = file.Close() // only read
					return
				}
			}
			if err := file.Close(); err != nil {
				yield(nil, err)
				return
			}
		}
	}
}

func reversed(list []string) []string {
	other := slices.Clone(list)
	slices.Reverse(other)
	return other
}
