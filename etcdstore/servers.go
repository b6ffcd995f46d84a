package etcdstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"trainmaster/master/store"
	"trainmaster/taskqueue"
)

// servers is the registry of parameter servers at one revision.
type servers struct {
	desired int            // -1 while /ps_desired is absent
	spread  int            // servers that the model is spread over, -1 while that is desired
	addrs   map[int]string // by index
	claims  []store.Server
}

// serving is the number of servers that the job needs to continue: some desired servers may have no block yet.
func (r servers) serving() int {
	if r.spread < 0 || r.desired < 0 {
		return r.desired
	}
	return r.spread
}

// list returns the addresses of the first n, "" where there is none.
func (r servers) list(n int) []string {
	addrs := make([]string, n)
	for i := range addrs {
		addrs[i] = r.addrs[i]
	}
	return addrs
}

// holder returns the claim of an index, the zero value if there is none.
func (r servers) holder(index int) store.Server {
	for _, h := range r.claims {
		if h.Index == index {
			return h
		}
	}
	return store.Server{}
}

// missing lists the indices below n without a holder.
func (r servers) missing(n int) []int {
	var out []int
	for i := range n {
		if _, there := r.addrs[i]; !there {
			out = append(out, i)
		}
	}
	return out
}

func (s *Store) parseServers(keys listing) (servers, error) {
	r := servers{desired: -1, spread: -1, addrs: map[int]string{}}
	for key, kv := range keys {
		if key == s.abs(keyPSBlocks) {
			var layout struct {
				Shards int `json:"shards"`
			}
			if err := json.Unmarshal(kv.Value, &layout); err != nil || layout.Shards < 1 {
				return r, fmt.Errorf("%w: %s: want JSON with the number of shards, found %.40q", ErrCorrupt, key, kv.Value)
			}
			r.spread = layout.Shards
			continue
		}
		if key == s.abs(keyPSDesired) {
			n, err := strconv.Atoi(string(kv.Value))
			if err != nil || n < 0 {
				return r, fmt.Errorf("%s: want a decimal count, found %.40q; correct it with: etcdctl put %s N", key, kv.Value, key)
			}
			r.desired = n
			continue
		}
		if index, err := strconv.Atoi(strings.TrimPrefix(key, s.abs(keyPS))); err == nil && index >= 0 {
			r.addrs[index] = string(kv.Value)
			r.claims = append(r.claims, store.Server{Index: index, Addr: string(kv.Value), Lease: kv.Lease})
		}
	}
	return r, nil
}

// watchServers watches /ps/, /ps_blocks and /ps_desired, which are neighbors. /ps_step, which changes with every synchronous
// step, sorts after them.
func (s *Store) watchServers(ctx context.Context, changed func(servers) (more bool)) error {
	var wrong error
	err := s.watch(ctx, s.abs(keyPS), s.abs(keyPSDesired)+"\x00", func(keys listing) bool {
		var r servers
		if r, wrong = s.parseServers(keys); wrong != nil {
			return false
		}
		return changed(r)
	})
	return errors.Join(err, wrong)
}

// SetDesiredIfAbsent writes /ps_desired if it is absent, and returns the stored value.
func (s *Store) SetDesiredIfAbsent(ctx context.Context, n int) (int, error) {
	key := s.abs(keyPSDesired)
	pause := backoff{least: 20 * time.Millisecond, most: time.Second}
	for {
		answer, err := s.txn(ctx, &pb.TxnRequest{
			Compare: []*pb.Compare{createdAt(key, 0)},
			Success: []*pb.RequestOp{opPut(key, []byte(strconv.Itoa(n)), 0)},
			Failure: []*pb.RequestOp{opGet(key)},
		})
		switch {
		case err == nil && answer.Succeeded:
			return n, nil
		case err == nil:
			there := answer.Responses[0].GetResponseRange().Kvs[0]
			r, err := s.parseServers(listing{key: there})
			return r.desired, err
		case !errors.Is(err, taskqueue.ErrUnknownOutcome) || sleep(ctx, pause.next()) != nil:
			return 0, fmt.Errorf("write %s: %w", key, err)
		}
	}
}

// Desired is the number of parameter servers that the job wants; it waits until
// a master has written it.
func (s *Store) Desired(ctx context.Context) (int, error) {
	n := -1
	err := s.watchServers(ctx, func(r servers) bool {
		n = r.desired
		return n < 0
	})
	if err != nil {
		return 0, fmt.Errorf("wait for %s: %w", s.abs(keyPSDesired), err)
	}
	return n, nil
}

// DesiredNow returns the number of parameter servers that the job wants, -1 if it is not set.
func (s *Store) DesiredNow(ctx context.Context) (int, error) {
	answer, err := s.get(ctx, s.abs(keyPSDesired))
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", s.abs(keyPSDesired), err)
	}
	there := listing{}
	for _, kv := range answer.Kvs {
		there[string(kv.Key)] = kv
	}
	r, err := s.parseServers(there)
	return r.desired, err
}

// Claim is an index of a parameter server, held under a lease.
type Claim struct {
	*leasedKey
	index int
	addr  string
	job   ServedJob
}

// ServedJob holds the facts of its job that a parameter server needs to start.
type ServedJob struct {
	Name      string // "" before a master has begun the job
	ID        []byte
	Epoch     uint32
	Desired   int                  // parameter servers
	Led       bool                 // whether a master leads
	LatestSet []byte               // latest named checkpoint set; nil: none
	Named     int64                // mod revision of LatestSet; 0: none
	Placement []byte               // placement of moved blocks; nil: none moved
	Rate      taskqueue.RateChange // newest learning rate; number 0: it was not changed
	TableKey  []byte               // derived from the secret of the job for the hash of the ids of embedding tables; nil: the job has no secret
}

// ClaimPS takes the first free index below the desired count for a server that serves at addr. While all are taken, or the
// count is not known yet, it waits as a standby; waiting (may be nil) receives the reason.
func (s *Store) ClaimPS(ctx context.Context, addr string, ttl time.Duration, waiting func(reason string)) (*Claim, error) {
	if ttl < time.Second {
		return nil, fmt.Errorf("claim a parameter server's index: lease TTL %v; want at least 1s", ttl)
	}
	if waiting == nil {
		waiting = func(string) {}
	}
	ctx, cancel := s.bound(ctx)
	defer cancel()
	pause := backoff{least: 50 * time.Millisecond, most: 2 * time.Second}
	for {
		claim, err := s.tryClaim(ctx, addr, ttl, waiting)
		switch {
		case claim != nil:
			return claim, nil
		case ctx.Err() != nil:
			return nil, fmt.Errorf("claim a parameter server's index: %w", ctx.Err())
		case refused(err):
			return nil, fmt.Errorf("claim a parameter server's index: %w: %w", ErrRefused, err)
		case err != nil:
			waiting(err.Error())
		}
		if err := sleep(ctx, pause.next()); err != nil {
			return nil, fmt.Errorf("claim a parameter server's index: %w", err)
		}
	}
}

// tryClaim waits for a free index and reaches for it; nil, nil when another was
// faster.
func (s *Store) tryClaim(ctx context.Context, addr string, ttl time.Duration, waiting func(string)) (*Claim, error) {
	index, err := s.freeIndex(ctx, addr, waiting)
	if err != nil {
		return nil, err
	}
	h, err := s.grantLease(ctx, ttl, ttl/10, renewServer)
	if err != nil {
		return nil, err
	}
	ours, _, err := h.putKey(ctx, s.abs(keyPS)+strconv.Itoa(index), []byte(addr))
	if err != nil || !ours {
		h.abandon()
		return nil, err
	}
	job, err := s.servedJob(ctx)
	if err != nil {
		h.abandon()
		return nil, err
	}
	h.watchKey()
	return &Claim{leasedKey: h, index: index, addr: addr, job: job}, nil
}

const maxState = 64 << 20 // decoded

func (s *Store) servedJob(ctx context.Context) (ServedJob, error) {
	job := ServedJob{Desired: -1}
	answer, err := s.readTxn(ctx, &pb.TxnRequest{Success: []*pb.RequestOp{opGet(s.abs(keyPSDesired)), opGet(s.abs(keyAddr)), opGet(s.abs(keyLatest)), opGet(s.abs(keyPSBlocks)), opGet(s.abs(keyState)), opGet(s.abs(taskqueue.SecretKey))}})
	if err != nil {
		return job, fmt.Errorf("read what the job is at: %w", err)
	}
	for i, response := range answer.Responses {
		for _, kv := range response.GetResponseRange().Kvs {
			switch i {
			case 0:
				r, err := s.parseServers(listing{string(kv.Key): kv})
				if err != nil {
					return job, err
				}
				job.Desired = r.desired
			case 1:
				job.Led = true
			case 2:
				job.LatestSet, job.Named = kv.Value, kv.ModRevision
			case 3:
				job.Placement = kv.Value
			case 4:
				var state struct { // of taskqueue.Snapshot
					Job   string
					JobID []byte
					Epoch uint32
					Rates []taskqueue.RateChange
				}
				if err := Decode(kv.Value, &state, maxState); err != nil {
					return job, fmt.Errorf("%s: %w", kv.Key, err)
				}
				job.Name, job.ID, job.Epoch = state.Job, state.JobID, state.Epoch
				for _, r := range state.Rates {
					job.Rate = r
				}
			case 5:
				secret, err := taskqueue.ParseSecret(kv.Value)
				if err != nil {
					return job, err
				}
				key := secret.Derive("table ids")
				job.TableKey = key[:]
			}
		}
	}
	return job, nil
}

// Servers returns the addresses of the job's parameter servers by index, "" for an index without a server; nil while no master
// has set their number.
func (s *Store) Servers(ctx context.Context) ([]string, error) {
	r, err := s.readServers(ctx)
	if err != nil || r.desired < 0 {
		return nil, err
	}
	return r.list(r.serving()), nil
}

// RegisteredServers returns the addresses of all servers that hold an index, also those
// that the model is not spread over yet, or no more; "" where there is none.
func (s *Store) RegisteredServers(ctx context.Context) ([]string, error) {
	r, err := s.readServers(ctx)
	last := -1
	for i := range r.addrs {
		last = max(last, i)
	}
	return r.list(last + 1), err
}

func (s *Store) readServers(ctx context.Context) (servers, error) {
	answer, err := s.readTxn(ctx, &pb.TxnRequest{Success: []*pb.RequestOp{{Request: &pb.RequestOp_RequestRange{
		RequestRange: &pb.RangeRequest{Key: []byte(s.abs(keyPS)), RangeEnd: []byte(s.abs(keyPSDesired) + "\x00")},
	}}}})
	if err != nil {
		return servers{}, fmt.Errorf("list the parameter servers: %w", err)
	}
	keys := listing{}
	for _, kv := range answer.Responses[0].GetResponseRange().Kvs {
		keys[string(kv.Key)] = kv
	}
	return s.parseServers(keys)
}

func (s *Store) freeIndex(ctx context.Context, addr string, waiting func(string)) (index int, err error) {
	ctx, cancel := context.WithCancel(ctx)
	var evicting sync.WaitGroup
	defer evicting.Wait()
	defer cancel()
	asked := map[int64]bool{}
	var said string
	err = s.watchServers(ctx, func(r servers) bool {
		for _, h := range r.claims {
			//guard:server-evicts-earlier-start
			if h.Addr == addr && !asked[h.Lease] {
				asked[h.Lease] = true
				evicting.Go(func() { s.evictPredecessor(ctx, h, waiting) })
			}
		}
		free := r.missing(r.desired)
		if len(free) > 0 {
			index = free[0]
			return false
		}
		reason := fmt.Sprintf("all %d indices are taken: on standby", r.desired)
		if r.desired < 0 {
			reason = "waiting for a master to write " + s.abs(keyPSDesired)
		}
		if reason != said {
			waiting(reason)
			said = reason
		}
		return true
	})
	return index, err
}

// Index is which parameter server this is, from 0.
func (c *Claim) Index() int { return c.index }

// Job is what the job was at when the index was claimed.
func (c *Claim) Job() ServedJob { return c.job }

// Current returns what the job is at now.
func (c *Claim) Current(ctx context.Context) (ServedJob, error) { return c.store.servedJob(ctx) }

// AskSet writes the key of the server again. The leader watches the keys, and then looks which servers want a checkpoint set.
func (c *Claim) AskSet(ctx context.Context) error {
	answer, err := c.store.txn(ctx, &pb.TxnRequest{
		Compare: []*pb.Compare{createdAt(c.key, c.createRevision)},
		Success: []*pb.RequestOp{opPut(c.key, []byte(c.addr), c.lease)},
	})
	if err == nil && !answer.Succeeded {
		err = errors.New("found another server's key")
	}
	if err != nil {
		return fmt.Errorf("put %s: %w", c.key, err)
	}
	return nil
}

// Lost closes when the index is no longer ours; the server must stop then.
func (c *Claim) Lost() <-chan struct{} { return c.lost }

// Cause says why it was lost; nil while it is not.
func (c *Claim) Cause() error { return c.whyLost() }

// Release gives the index back for the next server.
func (c *Claim) Release(ctx context.Context) error {
	if err := c.release(ctx); err != nil {
		return fmt.Errorf("release %s: %w", c.key, err)
	}
	return nil
}

// WatchPS sends the addresses of the parameter servers by index, now and after
// every change. A slow receiver sees the newest only. The channel closes when
// ctx or the store ends, or when etcd refuses us.
func (s *Store) WatchPS(ctx context.Context) <-chan map[int]string {
	return latest(ctx, s, func(ctx context.Context, emit func(map[int]string)) error {
		return s.watchServers(ctx, func(r servers) bool {
			emit(r.addrs)
			return true
		})
	})
}

// WaitPS waits until all desired indices are held and returns their addresses in order. missing (may be nil) receives the
// missing indices, when they change; nil while no master has set their number.
func (s *Store) WaitPS(ctx context.Context, missing func(indices []int)) (addrs []string, err error) {
	said := []int{-1} // nothing yet
	err = s.watchServers(ctx, func(r servers) bool {
		lacking := r.missing(r.serving())
		if r.desired >= 0 && len(lacking) == 0 {
			addrs = r.list(r.serving())
			return false
		}
		if missing != nil && !slices.Equal(said, lacking) {
			missing(lacking)
			said = lacking
		}
		return true
	})
	if err != nil {
		return nil, fmt.Errorf("wait for the parameter servers: %w", err)
	}
	return addrs, nil
}
