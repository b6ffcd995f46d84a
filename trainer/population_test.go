package trainer_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"
	"google.golang.org/grpc"

	"trainmaster/etcdstore/etcdtest"
	"trainmaster/internal/freeport"
	"trainmaster/master"
	"trainmaster/master/component"
	"trainmaster/master/evaluation/metric"
	"trainmaster/master/mastertest"
	"trainmaster/master/rounds"
	"trainmaster/master/strategy"
	"trainmaster/master/trainerclient"
	"trainmaster/master/trainercontrol"
	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/recordio"
	"trainmaster/taskqueue"
	"trainmaster/trainer"
)

// populatedJob starts a job with a population and an evaluation task.
func populatedJob(t *testing.T) *mastertest.Running {
	t.Helper()
	heldOut := filepath.Join(t.TempDir(), "held-out")
	var content bytes.Buffer
	w := recordio.NewWriter(&content, recordio.WriterOptions{RecordsPerChunk: 1})
	if err := errors.Join(w.Write([]byte("record")), w.Close(), os.WriteFile(heldOut, content.Bytes(), 0o600)); err != nil {
		t.Fatal(err)
	}
	file := []byte("population: {every: 1pass, figure: \"loss:min\", hyper-parameters: {rate: {min: 1, max: 2}}}")
	parsed, err := strategy.Parse(file)
	if err != nil {
		t.Fatal(err)
	}
	store := etcdtest.Store(t)
	started := make(chan *master.Master, 1)
	leader := sync.OnceValue(func() *master.Master { return <-started })
	evaluating := rounds.New(rounds.Config{Store: store, Register: func(ctx context.Context) error {
		return leader().ReportSet(ctx, taskqueue.SetSpec{Kind: taskqueue.Evaluation}, []string{heldOut})
	}})
	logger, _ := logtest.NewNullLogger()
	control := trainercontrol.New(trainercontrol.Config{Trainers: trainerclient.Client{}, Log: logrus.NewEntry(logger)})
	config := master.Config{Components: []component.Component{evaluating, control}, ChunksPerTask: 1}
	config.Queue.Passes, config.Queue.HoldEnd, config.Queue.Strategy = 1<<20, true, parsed.OfJob(file, false)
	r := mastertest.Start(t, store, config)
	started <- r.Master
	r.Register(4)
	mastertest.Eventually(t, "the evaluation data is registered", func() bool {
		v, err := r.Overview(t.Context())
		return err == nil && len(v.Sets) == 2
	})
	return r
}

// A client receives the model of another client, over each protocol, with values of its own. Without the model, it keeps its own and reports the reason.
func TestClientReceivesTheModelOfAnother(t *testing.T) {
	overBoth(t, func(t *testing.T) {
		r := populatedJob(t)
		var unreadable atomic.Bool
		ctx, cancel := context.WithCancel(within(t))
		var working sync.WaitGroup
		defer working.Wait()
		defer cancel()
		received := make(chan string, 100)
		logger, _ := logtest.NewNullLogger()
		for id, loss := range map[string]float64{"good": 0.25, "poor": 0.75} {
			addr, err := freeport.Addr("127.0.0.1")
			if err != nil {
				t.Fatal(err)
			}
			c, err := trainer.Join(within(t), trainer.Config{
				ID: id, Locate: trainer.At(r.Addr), Heartbeat: 50 * time.Millisecond, Log: logrus.NewEntry(logger), Protocol: protocol, Control: addr,
				Model: func(context.Context) (int64, []byte, error) {
					if unreadable.Load() {
						return 0, nil, trainer.ErrNoModel
					}
					return 7, []byte("model of " + id), nil
				},
				Evaluate: func(context.Context, *taskqueue.Task, iter.Seq2[[]byte, error]) ([]byte, error) {
					var set metric.Set
					err := set.AddMean("loss", loss, 1)
					return set.Encode(), err
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = c.Close() })
			working.Go(func() {
				task, err := c.Next(ctx, nil)
				for ; err == nil; task, err = c.Next(ctx, task) {
					if rate := c.HyperParameters(task)["rate"]; rate < 1 || rate > 2 {
						t.Errorf("%s: rate %v", id, rate)
					}
					var content bytes.Buffer
					version, ok, err := c.ReceiveModel(ctx, task, &content)
					_, named := c.ModelOf(task)
					switch {
					case ctx.Err() != nil:
					case err != nil:
						c.KeptModel(task, err)
						received <- id + ": " + err.Error()
					case ok != named:
						t.Errorf("received %v, named %v", ok, named)
					case ok:
						received <- fmt.Sprintf("%s: %s, version %d", id, content.Bytes(), version)
					}
				}
				if ctx.Err() == nil && !errors.Is(err, io.EOF) {
					t.Errorf("%s: %v", id, err)
				}
			})
		}
		if found := <-received; found != "poor: model of good, version 7" {
			t.Errorf("found %s", found)
		}
		unreadable.Store(true)
		for found := ""; !strings.Contains(found, trainer.ErrNoModel.Error()); found = <-received {
			if found != "" && found != "poor: model of good, version 7" {
				t.Errorf("found %s", found)
			}
		}
		mastertest.Eventually(t, "the reason is noted", func() bool {
			v, err := r.Overview(t.Context())
			return err == nil && len(v.Population.Members) == 2 && strings.Contains(v.Population.Members[1].Note, "keeps its model: ") && strings.Contains(v.Population.Members[1].Note, trainer.ErrNoModel.Error())
		})
	})
}

// F565: a program with a window, as the agent of a trainer in Python, is evaluated and ranked, but receives no model. The state has the reason.
func TestWindowKeepsItsModel(t *testing.T) {
	overBoth(t, func(t *testing.T) {
		r := populatedJob(t)
		ctx, cancel := context.WithCancel(within(t))
		var working sync.WaitGroup
		defer working.Wait()
		defer cancel()
		logger, _ := logtest.NewNullLogger()
		config := func(id string, loss float64) trainer.Config {
			addr, err := freeport.Addr("127.0.0.1")
			if err != nil {
				t.Fatal(err)
			}
			return trainer.Config{
				ID: id, Locate: trainer.At(r.Addr), Heartbeat: 50 * time.Millisecond, Log: logrus.NewEntry(logger), Protocol: protocol, Control: addr, Window: 2,
				Model: func(context.Context) (int64, []byte, error) { return 7, []byte("model of " + id), nil },
				Evaluate: func(context.Context, *taskqueue.Task, iter.Seq2[[]byte, error]) ([]byte, error) {
					var set metric.Set
					err := set.AddMean("loss", loss, 1)
					return set.Encode(), err
				},
			}
		}
		c, err := trainer.Join(within(t), config("good", 0.25))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		w, err := trainer.JoinWindow(within(t), config("poor", 0.75))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = w.Close() })
		working.Go(func() {
			for task, err := c.Next(ctx, nil); err == nil; task, err = c.Next(ctx, task) {
			}
		})
		working.Go(func() {
			for ctx.Err() == nil {
				tasks, _, _ := w.Take(ctx, trainer.Wish{Most: 1, Wait: time.Second})
				w.Finished(tasks...)
			}
		})
		mastertest.Eventually(t, "the reason is noted", func() bool {
			v, err := r.Overview(t.Context())
			return err == nil && len(v.Population.Members) == 2 && strings.Contains(v.Population.Members[1].Note, "keeps its model: a trainer of the Python package receives no models")
		})
	})
}

// F254: the address of a trainer belongs to another trainer now. Its model is refused.
func TestModelOfAnotherTrainerAtTheAddressIsRefused(t *testing.T) {
	content := []byte("model")
	digest := sha256.Sum256(content)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	pb.RegisterTrainerControlServer(server, parts{list: []*pb.Model{{TrainerId: 4, Content: content, Digest: digest[:]}}})
	ended := make(chan error)
	go func() { ended <- server.Serve(listener) }()
	defer func() {
		server.Stop()
		<-ended
	}()
	addr := listener.Addr().String()
	if _, err := trainer.CopyModelOf(t.Context(), addr, 3, new(bytes.Buffer)); !errors.Is(err, trainer.ErrOtherTrainer) {
		t.Errorf("found %v", err)
	}
	if _, err := trainer.CopyModelOf(t.Context(), addr, 4, new(bytes.Buffer)); err != nil {
		t.Error(err)
	}
}
