package master

import (
	"slices"
	"sync"
	"time"

	"trainmaster/taskqueue"
)

// serversChanged is posted when the registry of parameter servers changes. A server that registers has just started.
type serversChanged struct{}

const onServersChanged taskqueue.EffectKind = 255 // not an effect of the queue

// Key implements taskqueue.Effect.
func (serversChanged) Key() taskqueue.EffectKey { return taskqueue.EffectKey{Kind: onServersChanged} }

// resendEvery is how often a component repeats its last message to parameter servers, for a server that started without a change
// of the registry.
const resendEvery = 5 * time.Second

// mailbox holds the newest effect of each key until its component takes it. Posting never blocks.
type mailbox struct {
	kinds   []taskqueue.EffectKind
	changed chan struct{} // has a token when there is something to take

	mu     sync.Mutex
	keys   []taskqueue.EffectKey // of newest, in the order in which they were first posted
	newest map[taskqueue.EffectKey]taskqueue.Effect
}

func newMailbox(kinds ...taskqueue.EffectKind) *mailbox {
	return &mailbox{kinds: kinds, changed: make(chan struct{}, 1), newest: map[taskqueue.EffectKey]taskqueue.Effect{}}
}

// post replaces the effect with the same key. It ignores effects of other kinds.
func (m *mailbox) post(e taskqueue.Effect) {
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
	signal(m.changed)
}

// take returns the effects that were posted since the last call.
func (m *mailbox) take() (list []taskqueue.Effect) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, key := range m.keys {
		list = append(list, m.newest[key])
	}
	m.keys = m.keys[:0]
	clear(m.newest)
	return list
}
