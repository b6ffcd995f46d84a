package allreduce

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"trainmaster/pserver/floats"
	"trainmaster/taskqueue"
	"trainmaster/trainer/ring"
)

// Model is what each member has.
type Model interface {
	// Settings describes the model and its optimizer. All members must have the same.
	Settings() string
	// Vectors returns the parameters and the state of the optimizer, which Apply changes. All members have the same lengths.
	Vectors() [][]float32
	// Length returns the length of a sum of gradients.
	Length() int
	// Apply changes the vectors by the sum of the gradients of the given number of records, and returns an error before it changes anything. The bits of
	// the result depend only on the vectors and the arguments. It may change sum.
	Apply(version uint64, sum []float32, records int64, rate float64) error
}

// Work has the tasks of a member. The goroutine of Run calls it.
type Work interface {
	// Next returns the mini-batch of this member for the next step, and waits at most the given time for a task. An empty batch: there is no task. Next
	// is called again for a step that was not made; used returns the records of a task that the model has. io.EOF: the job has ended.
	Next(ctx context.Context, wait time.Duration, used func(taskqueue.Token) (records int64, whole bool)) (Batch, error)
	// Gradient overwrites sum with the sum of the gradients of the batch of Next.
	Gradient(ctx context.Context, sum []float32) error
	// Applied says that the model has the batch of Next.
	Applied()
	// Finished says that all members have all records of the task of the batch of Next.
	Finished(ctx context.Context) error
	// Release returns the tasks of this member to the queue, since it waits for other members. Applied and Finished may follow for a batch of a task
	// that was returned. Another goroutine may call it, while Run calls no other method.
	Release()
	// Ended closes when the job has ended.
	Ended() <-chan struct{}
}

// Rendezvous has the memberships of a job.
type Rendezvous interface {
	// Next waits for a membership with a generation above after. idle is called when the member waits without a generation. io.EOF: no membership follows.
	Next(ctx context.Context, after uint64, idle func()) (ring.Membership, error)
	// Newest returns the newest generation that is known.
	Newest() uint64
	// Superseded waits until a generation above the given one is known, or ctx ends.
	Superseded(ctx context.Context, generation uint64)
	// Failed reports that a generation ended. peer is the id of the member that failed; "": not known.
	Failed(ctx context.Context, generation uint64, peer, reason string)
}

// Member is a member of a ring. Its fields are set before Run, and not changed after.
type Member struct {
	Model      Model
	Work       Work
	Rendezvous Rendezvous
	Endpoint   *ring.Endpoint
	Log        *logrus.Entry
	Lock       sync.Locker // held while the vectors of the model change
	// Stepped is called when the vectors of the model have another version, with Lock. May be nil.
	Stepped func(version uint64)

	tag      tag
	progress Progress
	sum      []float32
	idle     bool // the last step had no records

	patience  time.Duration // 0: maxHeld; for tests
	waited    time.Duration // for other members, since the last step
	releasing sync.Mutex    // held while the tasks are returned
}

// tag orders states.
type tag struct {
	generation, version uint64
}

func (t tag) less(o tag) bool {
	//guard:allreduce-newest-generation-wins
	return t.generation < o.generation || t.generation == o.generation && t.version < o.version
}

var (
	errEnded      = errors.New("the job has ended")
	errSuperseded = errors.New("a newer generation exists")
)

// SettingsError is returned by a member whose settings differ from the settings of the ring.
type SettingsError struct{ Own, Ring, Member string }

func (e *SettingsError) Error() string {
	return fmt.Sprintf("settings of the training: expected the settings of member %q, %s, found %s: start all trainers of the job with the same model and optimizer", e.Member, e.Ring, e.Own)
}

const (
	// idleWait is the wait for a task before a step, if the step before had no records.
	idleWait = 50 * time.Millisecond
	// nextWait is the wait for a task before a step otherwise: the next task is usually there.
	nextWait = 2 * time.Millisecond
	// returnWait is the wait for a task before a step, if the last task was returned to the queue: a session begins.
	returnWait = time.Second
	// maxHeld is the longest time with a task while a member waits for others. It is below the default minimum timeout of a task: the master ends
	// trainers that hang.
	maxHeld = 10 * time.Second
)

// Run trains until the job ends. current: the model has all records of all finished tasks, as far as this member knows. It is false if the job ended
// while the member was in no generation.
func (m *Member) Run(ctx context.Context) (current bool, err error) {
	m.sum = make([]float32, m.Model.Length())
	var last uint64
	for {
		var membership ring.Membership
		err := m.awaits(func() (err error) {
			membership, err = m.next(ctx, last)
			return err
		})
		if errors.Is(err, errEnded) || errors.Is(err, io.EOF) {
			return m.tag.version > 0 && m.tag.generation == m.Rendezvous.Newest(), nil
		}
		if err != nil {
			return false, err
		}
		last = membership.Generation
		err = m.generation(ctx, membership)
		var settings *SettingsError
		switch {
		case errors.Is(err, errEnded):
			return m.tag.version > 0, nil
		case ctx.Err() != nil:
			return false, context.Cause(ctx)
		case errors.Is(err, errSuperseded), errors.Is(err, ring.ErrOldGeneration):
		case errors.As(err, &settings):
			return false, err
		case isOfRing(err):
			peer := ""
			if lost, ok := errors.AsType[*ring.PeerError](err); ok && !errors.Is(err, ring.ErrEnded) {
				peer = lost.Member.ID
			}
			m.Log.WithError(err).WithField("generation", last).Warn("generation ended, waiting for the next")
			_ = m.awaits(func() error {
				m.Rendezvous.Failed(ctx, last, peer, err.Error())
				return nil
			})
		default:
			return false, err
		}
	}
}

// ringError marks errors of the group, after which the next generation follows.
type ringError struct{ error }

func (e ringError) Unwrap() error { return e.error }

func isOfRing(err error) bool {
	_, ok := errors.AsType[ringError](err)
	return ok
}

func ofRing(err error) error {
	if err == nil {
		return nil
	}
	return ringError{err}
}

// awaits calls wait, which waits for other members. It returns the tasks to the queue if the waits since the last step take longer than maxHeld.
func (m *Member) awaits(wait func() error) error {
	began, returned := time.Now(), make(chan struct{})
	//guard:allreduce-waiting-member-returns-task
	timer := time.AfterFunc(cmp.Or(m.patience, maxHeld)-m.waited, func() {
		defer close(returned)
		m.release()
	})
	err := wait()
	if !timer.Stop() {
		<-returned
	}
	m.waited += time.Since(began)
	return err
}

// release returns the tasks to the queue.
func (m *Member) release() {
	m.releasing.Lock()
	defer m.releasing.Unlock()
	m.Work.Release()
}

// gather is Gather of the group.
func (m *Member) gather(ctx context.Context, g *ring.Group, own []byte) (messages [][]byte, err error) {
	err = m.awaits(func() (err error) {
		messages, err = g.Gather(ctx, own)
		return err
	})
	return messages, ofRing(err)
}

// next waits for the next membership, or for the end of the job.
func (m *Member) next(ctx context.Context, last uint64) (ring.Membership, error) {
	bounded, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make(chan struct{})
	defer func() { <-done }()
	defer cancel(nil)
	go func() {
		defer close(done)
		select {
		case <-m.Work.Ended():
			cancel(errEnded)
		case <-bounded.Done():
		}
	}()
	membership, err := m.Rendezvous.Next(bounded, last, m.release)
	if err != nil && bounded.Err() != nil && ctx.Err() == nil {
		return membership, context.Cause(bounded)
	}
	return membership, err
}

// generation trains in one generation, until it ends with an error.
func (m *Member) generation(ctx context.Context, membership ring.Membership) error {
	g, err := m.form(ctx, membership)
	if err != nil {
		return err
	}
	err = m.train(ctx, g)
	if !errors.Is(err, errEnded) && !errors.Is(err, errSuperseded) {
		g.Abort(err.Error())
	}
	g.Close()
	return err
}

// form connects the members, until a newer generation is known.
func (m *Member) form(ctx context.Context, membership ring.Membership) (*ring.Group, error) {
	bounded, cancel := context.WithCancelCause(ctx)
	var watching sync.WaitGroup
	watching.Go(func() {
		m.Rendezvous.Superseded(bounded, membership.Generation)
		cancel(errSuperseded)
	})
	var g *ring.Group
	err := m.awaits(func() (err error) {
		g, err = m.Endpoint.Form(bounded, membership)
		return err
	})
	cancel(nil)
	watching.Wait()
	if errors.Is(err, errSuperseded) {
		return nil, err
	}
	return g, ofRing(err)
}

func (m *Member) train(ctx context.Context, g *ring.Group) error {
	if err := m.agree(ctx, g); err != nil {
		return err
	}
	for {
		if err := m.step(ctx, g); err != nil {
			return err
		}
	}
}

// state is what a member sends about its state at the start of a generation.
type state struct {
	tag
	length   uint64 // elements of all vectors
	progress uint64 // bytes
	settings string
}

func (s state) encode() []byte {
	var b []byte
	for _, v := range []uint64{s.generation, s.version, s.length, s.progress} {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	return append(b, s.settings[:min(len(s.settings), maxSettings)]...)
}

const maxSettings = 4 << 10

func decodeState(b []byte) (state, error) {
	if len(b) < 32 || len(b) > 32+maxSettings {
		return state{}, fmt.Errorf("state of a member: expected 32 to %d bytes, found %d", 32+maxSettings, len(b))
	}
	long := func(i int) uint64 { return binary.LittleEndian.Uint64(b[8*i:]) }
	return state{tag{long(0), long(1)}, long(2), long(3), string(b[32:])}, nil
}

// maxProgress limits the memory for a received progress.
const maxProgress = 1 << 30

// agree gives all members of a generation the newest state.
func (m *Member) agree(ctx context.Context, g *ring.Group) error {
	own := state{tag: m.tag, settings: m.Model.Settings()}
	for _, v := range m.Model.Vectors() {
		own.length += uint64(len(v))
	}
	progress := m.progress.encode()
	own.progress = uint64(len(progress))
	messages, err := m.gather(ctx, g, own.encode())
	if err != nil {
		return err
	}
	states := make([]state, len(messages))
	newest := 0
	for rank, b := range messages {
		if states[rank], err = decodeState(b); err != nil {
			return ofRing(&ring.PeerError{Member: g.Members[rank], Rank: rank, Err: err})
		}
		if states[newest].less(states[rank].tag) {
			newest = rank
		}
	}
	from := states[newest]
	var behind []int
	for rank, s := range states {
		if s.settings != from.settings || s.length != from.length {
			if states[g.Rank].settings != from.settings || states[g.Rank].length != from.length {
				return &SettingsError{own.settings, from.settings, g.Members[newest].ID}
			}
			return ofRing(&ring.PeerError{Member: g.Members[rank], Rank: rank, Err: fmt.Errorf("expected the settings %s, found %s", from.settings, s.settings)})
		}
		if s.tag != from.tag {
			behind = append(behind, rank)
		}
	}
	if err := m.awaits(func() error { return m.receive(ctx, g, newest, behind, from, progress) }); err != nil {
		return err
	}
	//guard:allreduce-tags-the-agreed-state
	m.tag.generation = g.Generation
	m.Log.WithFields(logrus.Fields{"generation": g.Generation, "rank": g.Rank, "members": g.Size(), "version": m.tag.version, "from": g.Members[newest].ID, "state_of": from.generation, "received": slices.Contains(behind, g.Rank)}).Info("state agreed")
	return nil
}

// receive copies the state of the rank newest to the ranks behind.
func (m *Member) receive(ctx context.Context, g *ring.Group, newest int, behind []int, from state, progress []byte) error {
	if len(behind) == 0 {
		return nil
	}
	receives := slices.Contains(behind, g.Rank)
	if receives {
		if from.progress > maxProgress {
			return ofRing(&ring.PeerError{Member: g.Members[newest], Rank: newest, Err: fmt.Errorf("progress of the tasks: expected at most %d bytes, found %d", maxProgress, from.progress)})
		}
		progress = make([]byte, from.progress)
	}
	if err := g.Broadcast(ctx, newest, behind, progress); err != nil {
		return ofRing(err)
	}
	vectors := m.Model.Vectors()
	staged := make([][]float32, len(vectors)) // an incomplete copy replaces nothing
	for i, v := range vectors {
		if receives {
			//guard:allreduce-incomplete-copy-replaces-nothing
			v = make([]float32, len(v))
			staged[i] = v
		}
		if err := g.Broadcast(ctx, newest, behind, floats.Bytes(v)); err != nil {
			return ofRing(err)
		}
	}
	if !receives {
		return nil
	}
	decoded, err := decodeProgress(progress)
	if err != nil {
		return ofRing(&ring.PeerError{Member: g.Members[newest], Rank: newest, Err: err})
	}
	m.Lock.Lock()
	defer m.Lock.Unlock()
	for i, v := range vectors {
		//guard:allreduce-newcomer-receives-all-vectors
		copy(v, staged[i])
	}
	//guard:allreduce-newcomer-receives-progress
	m.progress = decoded
	m.tag = from.tag
	m.stepped()
	return nil
}

// step makes one step.
func (m *Member) step(ctx context.Context, g *ring.Group) error {
	wait := nextWait
	switch {
	case m.waited >= cmp.Or(m.patience, maxHeld):
		wait, m.waited = returnWait, 0
	case m.idle:
		wait = idleWait
	}
	batch, err := m.Work.Next(ctx, wait, m.progress.Used)
	ended := errors.Is(err, io.EOF)
	if err != nil && !ended {
		return err
	}
	if batch.Records > 0 {
		if err := m.Work.Gradient(ctx, m.sum); err != nil {
			return err
		}
	}
	headers, err := m.exchange(ctx, g, header{version: m.tag.version, newest: m.Rendezvous.Newest(), ended: ended, batch: batch})
	if err != nil {
		return err
	}
	accepted := accept(&m.progress, headers)
	var records int64
	rate, last := 0.0, false
	for rank, h := range headers {
		if accepted[rank] {
			records += int64(h.batch.Records)
			if rate == 0 {
				rate = h.batch.Rate
			}
		}
		last = last || h.batch.Last
	}
	if err := m.reduce(ctx, g, accepted[g.Rank] && batch.Records > 0, records, rate); err != nil {
		return err
	}
	m.idle = records == 0
	if m.waited < cmp.Or(m.patience, maxHeld) {
		m.waited = 0
	}
	for rank, h := range headers {
		if accepted[rank] {
			m.progress.Add(h.batch.Token, int64(h.batch.Records), h.batch.Last)
		}
	}
	if accepted[g.Rank] {
		m.Work.Applied()
	}
	if !last {
		return nil
	}
	//guard:allreduce-finish-waits-for-all
	if _, err := m.gather(ctx, g, nil); err != nil {
		return err
	}
	if batch.Last && (accepted[g.Rank] || batch.Records == 0) {
		return m.Work.Finished(ctx)
	}
	return nil
}

// exchange sends the own header, and returns the headers of all members.
func (m *Member) exchange(ctx context.Context, g *ring.Group, own header) ([]header, error) {
	messages, err := m.gather(ctx, g, own.encode())
	if err != nil {
		return nil, err
	}
	headers := make([]header, len(messages))
	ended, newest := false, g.Generation
	for rank, b := range messages {
		h, err := decodeHeader(b)
		if err == nil && h.version != own.version {
			err = fmt.Errorf("%w: expected %d, found %d", errVersions, own.version, h.version)
		}
		if err != nil {
			return nil, ofRing(&ring.PeerError{Member: g.Members[rank], Rank: rank, Err: err})
		}
		headers[rank] = h
		ended, newest = ended || h.ended, max(newest, h.newest)
	}
	switch {
	case ended:
		return nil, errEnded
	case newest > g.Generation:
		return nil, errSuperseded
	}
	return headers, nil
}

// reduce adds the contributions of all members, and applies the sum.
func (m *Member) reduce(ctx context.Context, g *ring.Group, contributes bool, records int64, rate float64) error {
	if records == 0 {
		return nil
	}
	//guard:allreduce-member-without-task-adds-zero
	if !contributes {
		clear(m.sum)
	}
	if err := m.awaits(func() error { return g.AllReduce(ctx, m.sum) }); err != nil {
		return ofRing(err)
	}
	m.Lock.Lock()
	defer m.Lock.Unlock()
	if err := m.Model.Apply(m.tag.version+1, m.sum, records, rate); err != nil {
		return err
	}
	m.tag.version++
	m.stepped()
	return nil
}

func (m *Member) stepped() {
	if m.Stepped != nil {
		m.Stepped(m.tag.version)
	}
}

// Version returns the version of the model. The caller holds Lock, or Run has returned.
func (m *Member) Version() uint64 { return m.tag.version }
