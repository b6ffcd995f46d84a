package taskqueue

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"
)

// Join begins a session. A trainer that joins again is a new incarnation: the old one
// is lost.
type Join struct {
	ID      string
	Address string
	Control string // address of its service for commands, "ip:port"; "": it has none
	Window  int    // tasks that it wants to hold; 0: MinWindow
}

// An incarnation is unique in a job and grows. It consists of the number of restores from a backup (8 bits), the number
// of the commit (40 bits) and the number of the session in the commit.
const (
	restoresShift = 56
	commitShift   = 16
	maxCommit     = 1<<(restoresShift-commitShift) - 2
)

func (ev *Join) apply(q *Queue) Answer {
	delete(q.hung, ev.ID)
	old := q.byID[ev.ID]
	displaces := old != nil && !old.gone
	if displaces {
		q.lose(old, true) // the new session takes its place
	} else if err := q.roomForSession(); err != nil {
		return Answer{Err: err}
	}
	t := &trainer{id: ev.ID, address: ev.Address, control: ev.Control}
	if ev.Window > 0 {
		t.window = MinWindow
	}
	//guard:window-limit
	if w := min(ev.Window, MaxWindow); w > MinWindow && q.population == nil { // the tasks of a population are bound to its trainers
		t.window = w
	}
	if displaces && old.lostAt == 0 && old.address != ev.Address {
		t.rivals = old.rivals
		q.noteRival(t, old.address)
	}
	q.enlist(t)
	return Answer{Ordinal: t.ordinal, Incarnation: t.incarnation, Epoch: q.epoch, Window: max(t.window, MinWindow)}
}

// rivals counts sessions that took the place of a session with an intact connection. A trainer that was killed and started
// again has no such connection.
type rivals struct {
	since      Clock
	times      int
	quietUntil Clock // the next warning
}

// The limits of a warning about trainers with the same name.
const (
	rivalTimes = 3
	rivalSpan  = 10 * time.Second
	rivalPause = time.Minute
)

// noteRival warns if trainers with the same name displace each other repeatedly.
func (q *Queue) noteRival(t *trainer, displaced string) {
	r := &t.rivals
	if q.clock > r.since.Add(rivalSpan) {
		r.since, r.times = q.clock, 0
	}
	r.times++
	if r.times < rivalTimes || q.clock < r.quietUntil {
		return
	}
	r.quietUntil = q.clock.Add(rivalPause)
	q.notices = append(q.notices, Notice{Warning: true, What: "trainers with the same name displace each other: give each a name of its own, as with --id",
		Fields: map[string]any{"trainer": t.id, "address": t.address, "displaced": displaced, "times": r.times}})
}

// roomForSession refuses a session beyond the limit. The roster costs memory, keys in etcd and time in each tick, and any
// client can join.
func (q *Queue) roomForSession() error {
	//guard:session-limit
	if n := len(q.trainers); n >= q.opt.MaxSessions {
		return fmt.Errorf("%w: expected at most %d, found %d: wait until some end, or raise --max-sessions", ErrTooManySessions, q.opt.MaxSessions, n)
	}
	return nil
}

// enlist gives a trainer its session.
func (q *Queue) enlist(t *trainer) {
	t.ordinal, t.seen = q.nextOrdinal, q.clock
	t.incarnation = uint64(q.restores)<<restoresShift | (q.commit+1)<<commitShift | uint64(q.joins)
	q.nextOrdinal++
	q.joins++
	q.trainers[t.ordinal], q.byID[t.id] = t, t
	q.saveTrainer(t)
	q.ledger.joined(t)
}

func (q *Queue) saveTrainer(t *trainer) {
	q.roster[t.id] = t
	q.dirty = true
}

// observe records the time of a request.
//
//guard:reconnect-ends-grace
func (q *Queue) observe(t *trainer) { t.seen, t.lostAt = q.clock, 0 }

// Heartbeat keeps a session alive. A task in Moving, on which the trainer made progress,
// gets a new soft deadline, never beyond its hard one. Answer.Stops has the tasks in Held that the trainer must give up.
type Heartbeat struct {
	Trainer     Ordinal
	Incarnation uint64
	Moving      []Token
	Held        []Token
	Progress    Progress
	Evaluates   bool // the trainer takes a task of a round of its own with the answer: then its kind is AnswerTask
}

func (ev *Heartbeat) apply(q *Queue) Answer {
	t := q.known(ev.Trainer, ev.Incarnation)
	if t == nil {
		return Answer{Kind: AnswerRejoin}
	}
	//guard:heartbeat-extends-session
	q.observe(t)
	t.progress = ev.Progress
	for _, tok := range ev.Moving {
		q.moved(t, tok)
	}
	if q.status == Failed {
		return Answer{Kind: AnswerFailed}
	}
	a := Answer{Draining: t.draining, Stops: q.stops(t, ev.Held), Late: q.late(t)}
	if ev.Evaluates != t.evaluates {
		t.evaluates = ev.Evaluates
		q.saveTrainer(t)
	}
	if t.evaluates && t.control == "" {
		q.offer(t, &a)
	}
	return a
}

// Moved reports that a trainer has made progress on a task, as its service for commands says.
type Moved struct {
	Trainer     Ordinal
	Incarnation uint64
	Task        Token
}

func (ev *Moved) apply(q *Queue) Answer {
	if t := q.known(ev.Trainer, ev.Incarnation); t != nil {
		q.moved(t, ev.Task)
	}
	return Answer{}
}

// moved extends the deadline of a task that t trains.
func (q *Queue) moved(t *trainer, tok Token) {
	_, e, status := q.locate(tok)
	if status != Counted || e == nil {
		return
	}
	for i := range e.holderCount {
		if h := &e.holders[i]; h.trainer == t && h.attempt == tok.Attempt && h.start != 0 {
			q.extend(e, h)
		}
	}
}

// extend sets the soft deadline to now + timeout, within the hard deadline.
func (q *Queue) extend(e *entry, h *holder) {
	timeout := q.timeoutOf(e)
	//guard:hard-deadline
	h.soft = min(q.clock.Add(timeout), h.start.Add(hardDeadlineFactor*timeout))
	h.asked = false
}

func (q *Queue) known(o Ordinal, incarnation uint64) *trainer {
	if t := q.trainers[o]; t != nil && t.incarnation == incarnation && !t.gone {
		return t
	}
	return nil
}

// Leave ends a session in order: what the trainer holds goes back uncharged.
type Leave struct {
	Trainer     Ordinal
	Incarnation uint64
}

func (ev *Leave) apply(q *Queue) Answer {
	if t := q.known(ev.Trainer, ev.Incarnation); t != nil {
		delete(q.hung, t.id)
		q.endOwnRoundOf(t, "it has left")
		q.modelSaved = q.modelSaved || q.population != nil && q.hasEnded() && t.ordinal == q.saver
		t.gone = true
		if q.keepsTasks() {
			q.keep(t)
			return Answer{}
		}
		q.giveBack(t, false, nil)
		q.forget(t)
	}
	return Answer{}
}

// Died reports that the process of a trainer has died. Its session ends immediately, without the grace of a lost connection, and the loss is
// charged to the running task.
type Died struct {
	Trainer     Ordinal
	Incarnation uint64
}

func (ev *Died) apply(q *Queue) Answer {
	if t := q.known(ev.Trainer, ev.Incarnation); t != nil {
		delete(q.hung, t.id)
		//guard:died-charges-task-in-hand
		q.lose(t, true)
	}
	return Answer{}
}

// Disconnected reports that the connection of a trainer has closed. A joined trainer has a grace period to reconnect. Any
// other trainer is lost immediately.
type Disconnected struct {
	Trainer     Ordinal
	Incarnation uint64
}

func (ev *Disconnected) apply(q *Queue) Answer {
	t := q.known(ev.Trainer, ev.Incarnation)
	switch {
	case t == nil:
	case t.plain:
		//guard:closed-plain-connection
		q.lose(t, true)
	case t.lostAt == 0:
		//guard:lost-connection-grace
		t.lostAt = q.clock.Add(q.opt.Grace)
	}
	return Answer{}
}

// Gone reports that the process of a trainer that has joined does not run any more. Its session ends immediately, without the grace of a lost connection.
type Gone struct {
	ID     string
	Charge bool // the trainer has caused its end: the loss counts against its running task
}

func (ev *Gone) apply(q *Queue) Answer {
	delete(q.hung, ev.ID)
	if q.HasSession(ev.ID) {
		t := q.byID[ev.ID]
		//guard:gone-charges-as-told
		q.lose(t, ev.Charge)
	}
	return Answer{}
}

// HasSession reports whether a trainer has joined and its session has not ended.
func (q *Queue) HasSession(id string) bool {
	t := q.byID[id]
	return t != nil && !t.gone && !t.plain
}

// Undelivered returns a task whose answer could not be written to its connection.
type Undelivered struct {
	Trainer     Ordinal
	Incarnation uint64
	Token       Token
}

func (ev *Undelivered) apply(q *Queue) Answer {
	t := q.known(ev.Trainer, ev.Incarnation)
	_, e, status := q.locate(ev.Token)
	if t == nil || status != Counted || e == nil {
		return Answer{}
	}
	for i := range e.holderCount {
		if h := e.holders[i]; h.trainer == t && h.attempt == ev.Token.Attempt {
			q.release(e, t)
			q.ledger.returned(e, t.ordinal, h.attempt)
			q.retryOrSetAside(e)
			break
		}
	}
	return Answer{}
}

// Tick advances the time: sessions end, deadlines are reached. One tick writes a bounded number of keys, since a transaction
// does; the next tick continues. Deadlines have a separate limit, so ending sessions cannot delay them.
type Tick struct{}

const (
	sessionKeysPerTick  = 60 // no further session ends if this number of keys is pending
	deadlineKeysPerTick = 20
)

func (ev *Tick) apply(q *Queue) Answer {
	q.endSessions()
	q.tickOwnRound()
	q.tickHung()
	//guard:deadline-key-limit
	limit := q.PendingWrites() + deadlineKeysPerTick
	if q.explicit != nil {
		q.tickExplicit(limit)
	} else {
		q.passDeadlines(limit)
	}
	return Answer{}
}

// endSessions ends the sessions of trainers that are silent or whose connection is gone.
func (q *Queue) endSessions() {
	var lost []*trainer
	for _, t := range q.trainers {
		//guard:session-timeout
		silent := !t.plain && q.clock > t.seen.Add(q.opt.SessionTTL)
		if !t.gone && (silent || t.lostAt != 0 && q.clock >= t.lostAt) {
			lost = append(lost, t)
		}
	}
	slices.SortFunc(lost, byOrdinal)
	for _, t := range lost {
		if q.PendingWrites() >= sessionKeysPerTick {
			return
		}
		q.lose(t, true)
	}
}

// passDeadlines takes tasks from holders whose deadline is reached, while fewer keys than limit are
// pending.
func (q *Queue) passDeadlines(limit int) {
	for _, s := range q.sets {
		for i := 0; i < len(s.live); i++ {
			if !q.passDeadline(s.live[i], limit) {
				return
			}
		}
	}
}

// passDeadline takes a task from holders whose deadline is reached. It returns false if limit keys are pending.
func (q *Queue) passDeadline(e *entry, limit int) bool {
	for k := 0; !e.gone && k < e.holderCount; {
		h := e.holders[k]
		//guard:task-deadline
		if h.start == 0 || q.clock < h.soft {
			q.askProgress(e, &e.holders[k])
			k++
			continue
		}
		if q.PendingWrites() >= limit {
			return false
		}
		q.release(e, h.trainer)
		q.timeOut(e, h)
		if q.ofOwnRound(e) {
			q.endOwnRound("task " + e.lastError)
			return true
		}
		q.retryOrSetAside(e)
		//guard:lost-window-waits-once
		if h.trainer.gone { // losses are ignored: the timeout of one task returns all tasks of the trainer
			q.giveBack(h.trainer, false, nil)
		}
	}
	return true
}

// timeOut charges a task for a deadline that passed.
func (q *Queue) timeOut(e *entry, h holder) {
	q.watchHung(e, &h)
	e.failures++
	e.lastError, e.lastHolder = "timed out after "+q.clock.Sub(h.start).String(), h.trainer.id
	tok := q.token(e, h.attempt)
	h.trainer.late = append(h.trainer.late, lateTask{token: tok, index: e.set.orderOf(e.pass).index(e.position), start: h.start})
	if n := len(h.trainer.late); n > maxLate {
		h.trainer.late = slices.Delete(h.trainer.late, 0, n-maxLate)
	}
	if !h.trainer.plain {
		e.former = append(e.former, h.trainer)
	}
	q.ledger.timedOut(e, h.trainer.ordinal, h.attempt)
	q.notice(false, "task timed out", map[string]any{"set": e.set.id, "pass": e.pass, "position": e.position, "trainer": h.trainer.id, "attempt": h.attempt})
}

// lose ends the session of a trainer that went away without a word. Nothing is charged for
// a connection that the master before this one had: it went with that master.
func (q *Queue) lose(t *trainer, charge bool) {
	//guard:own-round-ends-with-its-trainer
	q.endOwnRoundOf(t, "it was lost")
	q.ledger.lost(t)
	q.notice(false, "trainer lost", map[string]any{"trainer": t.id, "incarnation": t.incarnation, "tasks": len(t.holds)})
	t.gone = true
	if q.keepsTasks() {
		if charge {
			q.chargeAll(t)
		}
		//guard:lost-trainer-keeps-tasks-until-rollback
		q.keep(t)
		return
	}
	//guard:lost-trainer-returns-tasks
	if !q.opt.LossesIgnored {
		q.giveBack(t, charge && (!t.plain || t.lostAt == 0), nil)
	}
	if len(t.holds) == 0 {
		q.forget(t)
	} else if q.byID[t.id] == t {
		q.saveTrainer(t)
	}
}

// giveBack returns the tasks of t for which the function is true; nil: all. A loss is charged once, to the task whose clock runs, if this incarnation had
// finished another task before or a trainer was already lost with this task.
func (q *Queue) giveBack(t *trainer, loss bool, which func(*entry) bool) {
	for i := len(t.holds) - 1; i >= 0; i-- {
		e := t.holds[i]
		if which != nil && !which(e) {
			continue
		}
		h := *e.holderOf(t)
		if loss && h.start != 0 {
			t.charge(e)
		}
		q.detach(e, t)
		q.ledger.returned(e, t.ordinal, h.attempt)
		q.retryOrSetAside(e)
	}
}

// charge takes the loss of t into the books of its running task.
func (t *trainer) charge(e *entry) {
	if !t.charged && (t.finished || e.lost) {
		e.losses++
		t.charged = true
	}
	e.lost = true
	e.lastError, e.lastHolder = "its trainer was lost", t.id
}

// forget ends a session whose trainer holds nothing; its key is deleted.
func (q *Queue) forget(t *trainer) {
	t.gone = true
	if t.draining {
		q.ledger.left(t) // a reader of the ledger need not remember it any longer
	}
	delete(q.trainers, t.ordinal)
	q.sessionEnded, q.dirty = true, true
	if q.explicit != nil {
		delete(q.explicit.members, t.ordinal) // its flushed steps stay flushed
	}
	if q.byID[t.id] != t {
		return // its key is a later incarnation's
	}
	delete(q.byID, t.id)
	if _, pending := q.roster[t.id]; pending || t.stored {
		q.roster[t.id] = nil
		q.dirty = true
	}
}

// PlainAsk is the minimum: a connection that did not join reports its finished task and gets another task. Trainer is 0 until
// the connection gets its first task. Its session begins then.
type PlainAsk struct {
	Trainer     Ordinal
	Incarnation uint64
	Connection  string // unique name of the connection, as the roster shows it
	Finished    bool   // with Task or Index, and Token when not zero
	Task        TaskID // 0: Index names the task
	Index       int
	Offsets     uint64 // of the chunks of the finished task as the client has them, by OffsetsOf; 0: not known
	Result             // without Step. The zero token: Task or Index is enough
	Want        bool
	Progress    Progress
	Again       bool // a connection that holds a task gets the same task again: it may not have received the answer
	Accepts     Kinds
}

func (ev *PlainAsk) apply(q *Queue) Answer {
	a := Answer{Ordinal: ev.Trainer, Incarnation: ev.Incarnation}
	if q.explicit != nil {
		a.Err = fmt.Errorf("%w: a connection without a session receives no tasks", ErrExplicit)
		return a
	}
	t := q.known(ev.Trainer, ev.Incarnation)
	if t != nil {
		t.progress = ev.Progress
	}
	switch {
	case !ev.Finished:
	case ev.Task != 0:
		status, err := q.finishID(t, ev)
		if err != nil {
			a.Err = err
			return a
		}
		a.Finishes = []FinishStatus{status}
	case t != nil:
		a.Finishes = []FinishStatus{q.finishPlain(t, ev)}
	}
	if ev.Finished {
		q.steer(nil)
	}
	if !ev.Want {
		return a
	}
	//guard:plain-task-given-again
	if ev.Again && t != nil && len(t.holds) > 0 {
		e := t.holds[0]
		q.answerTask(e, e.holderOf(t).attempt, &a)
		return a
	}
	if t == nil {
		if old := q.byID[ev.Connection]; old != nil && !old.gone { // its name was used before
			q.lose(old, true)
		}
		t = &trainer{id: ev.Connection, address: ev.Connection, plain: true}
	}
	q.ask(t, 0, ev.Accepts, &a)
	a.Ordinal, a.Incarnation = t.ordinal, t.incarnation
	return a
}

// finishID judges a finish by the number of the task alone, as by a token: it may be of an earlier connection, or of the term of another
// leader. t is the session of the connection, nil if it has none.
func (q *Queue) finishID(t *trainer, ev *PlainAsk) (FinishStatus, error) {
	tok, ok := q.tokenOf(ev.Task)
	//guard:task-id-matches-token
	if !ok || !ev.Token.IsZero() && ev.Token != tok {
		return Stale, nil
	}
	if ev.Error != "" {
		q.noteNotFinite(tok, ev.NotFinite)
		return q.fail(nil, tok, ev.Error), nil
	}
	r := ev.Result
	r.Token = tok
	if err := q.checkMetrics(r); err != nil {
		return Stale, err
	}
	return q.finish(t, &r), nil
}

// finishPlain counts what the connection holds, or held until it timed out, and nothing else: a
// client that reuses its reply names tasks of others. It can also have read the chunk of another task: gob does not send the offset 0 of
// the first chunk of a file, so the client keeps an older offset.
func (q *Queue) finishPlain(t *trainer, ev *PlainAsk) FinishStatus {
	for _, e := range t.holds {
		tok := q.token(e, e.holderOf(t).attempt)
		//guard:plain-finish-matches-task
		if e.set.orderOf(e.pass).index(e.position) != ev.Index || !ev.Token.IsZero() && ev.Token != tok {
			continue
		}
		if ev.Error != "" {
			return q.fail(t, tok, ev.Error)
		}
		//guard:plain-finish-matches-chunks
		if !e.set.hasOffsets(ev) {
			return Stale
		}
		return q.finish(t, &Result{Token: tok})
	}
	for _, l := range slices.Backward(t.late) {
		//guard:plain-late-finish
		if l.index == ev.Index && (ev.Token.IsZero() || ev.Token == l.token) && ev.Error == "" {
			//guard:plain-late-finish-matches-chunks
			if !q.sets[l.token.Dataset].hasOffsets(ev) {
				return Stale
			}
			return q.finish(t, &Result{Token: l.token})
		}
	}
	return Stale
}

// hasOffsets reports whether the task that a connection finishes has the offsets that the client has.
func (s *set) hasOffsets(ev *PlainAsk) bool {
	if ev.Offsets == 0 || s.table == nil {
		return true
	}
	chunks := s.table.TaskChunks(ev.Index)
	return ev.Offsets == OffsetsOf(len(chunks), func(i int) int64 { return chunks[i].Index.Offset })
}

// SaveModel elects the one trainer that saves the model, by a lease on the job clock.
type SaveModel struct {
	Trainer     Ordinal
	Incarnation uint64
	Lease       Clock // milliseconds
}

func (ev *SaveModel) apply(q *Queue) Answer {
	t := q.known(ev.Trainer, ev.Incarnation)
	if t == nil {
		return Answer{Kind: AnswerRejoin}
	}
	if q.Saving() > 0 && q.saver != t.ordinal || !q.maySave(t) {
		return Answer{}
	}
	q.saver, q.saverUntil, q.dirty = t.ordinal, q.clock+ev.Lease, true
	return Answer{Granted: true}
}

// RosterEntry is the value under /trainers/<id>, as JSON.
type RosterEntry struct {
	Ordinal     Ordinal `json:"ordinal"`
	Incarnation uint64  `json:"incarnation"`
	Address     string  `json:"address,omitempty"`
	Draining    bool    `json:"draining,omitempty"`
	Finished    bool    `json:"finished,omitempty"`
	Charged     bool    `json:"charged,omitempty"`
	Plain       bool    `json:"plain,omitempty"`
	Lost        bool    `json:"lost,omitempty"` // and losses are ignored: only time returns its tasks
	Control     string  `json:"control,omitempty"`
	Evaluates   bool    `json:"evaluates,omitempty"`
	Window      int     `json:"window,omitempty"`
}

// RosterPrefix begins the keys of the roster; the trainer's id follows.
const RosterPrefix = "/trainers/"

func rosterKey(id string) string { return RosterPrefix + id }

func (t *trainer) encode() []byte {
	b, err := json.Marshal(RosterEntry{t.ordinal, t.incarnation, t.address, t.draining, t.finished, t.charged, t.plain, t.gone, t.control, t.evaluates, t.window})
	if err != nil {
		panic(err) // numbers and strings always encode
	}
	return b
}

func decodeTrainer(id string, value []byte) (*trainer, error) {
	var r RosterEntry
	if err := json.Unmarshal(value, &r); err != nil {
		return nil, err
	}
	return &trainer{ordinal: r.Ordinal, id: id, incarnation: r.Incarnation, address: r.Address,
		draining: r.Draining, finished: r.Finished, charged: r.Charged, plain: r.Plain, gone: r.Lost, control: r.Control, evaluates: r.Evaluates, window: min(max(r.Window, 0), MaxWindow), stored: true}, nil
}
