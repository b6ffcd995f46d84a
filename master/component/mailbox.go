package component

import (
	"slices"
	"sync"

	"trainmaster/taskqueue"
)

// The kinds of effects that are not effects of the queue, whose kinds count from 0.
const (
	OnServersChanged taskqueue.EffectKind = 255 - iota
	OnServerMemory
	OnCheckpointDue
	OnCheckpointDone
)

// ServersChanged is posted when the registry of parameter servers changes. A server that registers has just started.
type ServersChanged struct{}

// Key implements [taskqueue.Effect].
func (ServersChanged) Key() taskqueue.EffectKey { return taskqueue.EffectKey{Kind: OnServersChanged} }

// ServerMemory is posted every few seconds with the working sets of the containers of parameter servers, in bytes by the address of the server.
type ServerMemory struct{ Used map[string]uint64 }

// Key implements [taskqueue.Effect].
func (ServerMemory) Key() taskqueue.EffectKey { return taskqueue.EffectKey{Kind: OnServerMemory} }

// Mailbox holds the newest effect of each key until its component takes it. Posting never blocks.
type Mailbox struct {
	kinds   []taskqueue.EffectKind
	changed chan struct{}

	mu     sync.Mutex
	keys   []taskqueue.EffectKey // of newest, in the order in which they were first posted
	newest map[taskqueue.EffectKey]taskqueue.Effect
}

// NewMailbox returns an empty mailbox for effects of the given kinds.
func NewMailbox(kinds ...taskqueue.EffectKind) *Mailbox {
	return &Mailbox{kinds: kinds, changed: make(chan struct{}, 1), newest: map[taskqueue.EffectKey]taskqueue.Effect{}}
}

// Changed returns a channel that has a token when there is something to take.
func (m *Mailbox) Changed() <-chan struct{} { return m.changed }

// Post replaces the effect with the same key. It ignores effects of other kinds.
func (m *Mailbox) Post(e taskqueue.Effect) {
	key := e.Key()
	if !slices.Contains(m.kinds, key.Kind) {
		return
	}
	m.mu.Lock()
	if _, ok := m.newest[key]; !ok {
		m.keys = append(m.keys, key)
	}
	m.newest[key] = e
	m.mu.Unlock()
	m.Wake()
}

// Wake puts a token into Changed.
func (m *Mailbox) Wake() {
	select {
	case m.changed <- struct{}{}:
	default:
	}
}

// Take returns the effects that were posted since the last call.
func (m *Mailbox) Take() (list []taskqueue.Effect) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, key := range m.keys {
		list = append(list, m.newest[key])
	}
	m.keys = m.keys[:0]
	clear(m.newest)
	return list
}
