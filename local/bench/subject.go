package bench

import (
	"context"
	"errors"
	"net"
	"strconv"

	"trainmaster/etcdstore"
	"trainmaster/local/bench/literal"
	"trainmaster/local/bench/load"
	"trainmaster/master/grpcapi"
	"trainmaster/master/netrpc"
	"trainmaster/taskqueue"
)

// subject is a queue to be measured, with the connection to etcd that it shares with the raw
// loop.
type subject interface {
	start(ctx context.Context, callers int) (session, error)
	raw() *rawLoop
	counters() commitCounters
	close() error
}

// subject starts the queue of a row.
func (q *Queue) subject(ctx context.Context, key rowKey, endpoint string) (subject, error) {
	if key.via.literal() {
		return q.literal(ctx, key, endpoint)
	}
	s, err := startSite(ctx, endpoint, key.tasks, key.round)
	if err != nil {
		return nil, err
	}
	m := &masterSubject{site: s, queue: q, via: key.via}
	if key.via != InProcess {
		serve := (&netrpc.Server{Master: s.Master, Log: silent()}).Serve
		if key.via.grpc() {
			serve = grpcapi.New(s.Master, silent()).Serve
		}
		if m.port, err = servePort(ctx, serve); err != nil {
			return nil, errors.Join(err, s.close())
		}
	}
	return m, nil
}

// remote starts a load in a process of its own.
func (q *Queue) remote(ctx context.Context, via Via, addr string, callers int) (session, error) {
	return startRemote(ctx, q.Program, loadConfig{Via: via, Addr: addr, Callers: callers, Length: q.Length}, q.Stderr)
}

// masterSubject is the real queue.
type masterSubject struct {
	*site
	queue *Queue
	via   Via
	port  *servedPort // nil in process
}

func (m *masterSubject) start(ctx context.Context, callers int) (session, error) {
	if m.port != nil {
		return m.queue.remote(ctx, m.via, m.port.addr, callers)
	}
	trainers := make([]load.Trainer, callers)
	for i := range trainers {
		trainers[i] = load.InProcess(m.Master, trainerID(i))
	}
	return startLocal(ctx, trainers)
}

func (m *masterSubject) raw() *rawLoop {
	lock := m.store.lock.Load()
	return newRawLoop(m.store.Store, lock.key(), lock.Revision())
}

func (m *masterSubject) counters() commitCounters { return m.store.counters() }

func (m *masterSubject) close() error {
	var err error
	if m.port != nil {
		err = m.port.close()
	}
	return errors.Join(err, m.site.close())
}

// literalSubject is the baseline.
type literalSubject struct {
	*literal.Queue
	queue *Queue
	via   Via
	store *etcdstore.Store
	lock  *etcdstore.Lock
	port  *servedPort
}

func (q *Queue) literal(ctx context.Context, key rowKey, endpoint string) (*literalSubject, error) {
	store, err := etcdstore.Open(ctx, etcdstore.Config{Endpoints: []string{endpoint}, Job: string(key.via) + "-" + strconv.Itoa(key.tasks)})
	if err != nil {
		return nil, err
	}
	s := &literalSubject{queue: q, via: key.via, store: store}
	if err := s.begin(ctx, key.tasks); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

func (s *literalSubject) begin(ctx context.Context, tasks int) (err error) {
	if s.lock, err = s.store.Campaign(ctx, etcdstore.CampaignConfig{Address: "bench"}); err != nil {
		return err
	}
	table, err := syntheticTable(tasks)
	if err != nil {
		return err
	}
	encode := literal.Encode
	if s.via == LiteralShared {
		encode = etcdstore.Encode
	}
	if s.Queue, err = literal.New(ctx, s.lock, table, encode); err != nil {
		return err
	}
	s.port, err = servePort(ctx, s.Queue.Serve)
	return err
}

func (s *literalSubject) start(ctx context.Context, callers int) (session, error) {
	return s.queue.remote(ctx, s.via, s.port.addr, callers)
}

func (s *literalSubject) raw() *rawLoop { return newRawLoop(s.store, s.lock.Key(), s.lock.Revision()) }

func (s *literalSubject) counters() commitCounters {
	commits, bytes := s.Stored()
	return commitCounters{commits: commits, stateBytes: bytes, putBytes: bytes + commits*int64(len(taskqueue.StateKey))}
}

func (s *literalSubject) close() error {
	var err error
	if s.port != nil {
		err = s.port.close()
	}
	if s.lock != nil {
		err = errors.Join(err, s.lock.Resign(context.Background()))
	}
	return errors.Join(err, s.store.Close())
}

// servedPort is a port that is being served.
type servedPort struct {
	addr   string
	cancel context.CancelFunc
	done   chan error
}

func servePort(ctx context.Context, serve func(context.Context, net.Listener) error) (*servedPort, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	d := &servedPort{addr: l.Addr().String(), cancel: cancel, done: make(chan error, 1)}
	go func() { d.done <- serve(ctx, l) }()
	return d, nil
}

func (d *servedPort) close() error {
	d.cancel()
	return <-d.done
}
