package httpapi

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"trainmaster/master/rendezvous"
)

// The bounds of the store.
const (
	maxValue  = 1 << 20 // bytes
	maxValues = 64 << 20
	maxKeys   = 1 << 16
	maxName   = 512 // bytes of a scope or a key

	ringWait = 20 * time.Second // below writeTimeout
)

// horovod is the HTTP rendezvous of Horovod: a store of values by scope and key, of the processes of one generation. It never decodes a value.
// The scope rank_and_size is computed from the ring.
type horovod struct {
	// observe returns the ring, and the channel that closes at its next change.
	observe func() (rendezvous.Ring, <-chan struct{}, error)

	mu         sync.Mutex
	generation uint64                       // of the values
	values     map[string]map[string][]byte // by scope and key
	finished   map[string]map[string]bool   // ranks that have read all values of a scope
	size, keys int
}

func (h *horovod) route(routes *http.ServeMux) {
	routes.HandleFunc("GET /{scope}/{key}", h.get)
	routes.HandleFunc("PUT /{scope}/{key}", h.put)
	routes.HandleFunc("DELETE /{scope}/{key}", h.remove)
}

// currentLocked returns the ring. It removes the values of an earlier generation. If the request is invalid, or this master does not lead, it answers
// the request. The caller holds mu until its work on the values has ended: a request that has observed an earlier generation removes no values.
func (h *horovod) currentLocked(w http.ResponseWriter, r *http.Request) (ring rendezvous.Ring, changed <-chan struct{}, ok bool) {
	if max(len(r.PathValue("scope")), len(r.PathValue("key"))) > maxName {
		http.Error(w, fmt.Sprintf("expected at most %d bytes of a scope or a key", maxName), http.StatusBadRequest)
		return ring, nil, false
	}
	//guard:horovod-observes-with-lock
	ring, changed, err := h.observe()
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return ring, nil, false
	}
	//guard:values-of-a-generation
	if ring.Number != h.generation {
		h.generation = ring.Number
		h.values, h.finished, h.size, h.keys = map[string]map[string][]byte{}, map[string]map[string]bool{}, 0, 0
	}
	return ring, changed, true
}

// rankAndSize is the scope with the places of processes.
const rankAndSize = "rank_and_size"

func (h *horovod) get(w http.ResponseWriter, r *http.Request) {
	scope, key := r.PathValue("scope"), r.PathValue("key")
	h.mu.Lock()
	ring, changed, ok := h.currentLocked(w, r)
	value, exists := h.values[scope][key]
	h.mu.Unlock()
	switch {
	case !ok:
		return
	case scope == rankAndSize:
		h.place(w, r, ring, changed)
		return
	}
	if !exists {
		w.Header().Set("Content-Length", "0")
		w.WriteHeader(http.StatusNotFound)
		return
	}
	answer(w, value)
}

// answer writes a value. The client of Horovod reads as many bytes as the header says.
func answer(w http.ResponseWriter, value []byte) {
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.Itoa(len(value)))
	_, _ = w.Write(value) // the client repeats the request
}

// place answers with the slot of a process. Each number is -1 if the process is in no generation.
func (h *horovod) place(w http.ResponseWriter, r *http.Request, ring rendezvous.Ring, changed <-chan struct{}) {
	at := strings.LastIndexByte(r.PathValue("key"), ':')
	local := -1
	if at > 0 {
		if n, err := strconv.Atoi(r.PathValue("key")[at+1:]); err == nil {
			local = n
		}
	}
	if local < 0 {
		http.Error(w, fmt.Sprintf("rank_and_size: expected MEMBER:LOCAL_RANK, found %q", r.PathValue("key")), http.StatusBadRequest)
		return
	}
	limit := time.NewTimer(ringWait)
	defer limit.Stop()
	for !ring.Active() && ring.Closed == "" {
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		case <-limit.C:
			http.Error(w, "the ring waits for members", http.StatusServiceUnavailable)
			return
		}
		var ok bool
		h.mu.Lock()
		ring, changed, ok = h.currentLocked(w, r)
		h.mu.Unlock()
		if !ok {
			return
		}
	}
	s, ok := ring.Slot(r.PathValue("key")[:at], local)
	if !ok || ring.Closed != "" {
		s = rendezvous.Slot{Rank: -1, Size: -1, LocalRank: -1, LocalSize: -1, CrossRank: -1, CrossSize: -1}
	}
	answer(w, fmt.Appendf(nil, "%d,%d,%d,%d,%d,%d", s.Rank, s.Size, s.LocalRank, s.LocalSize, s.CrossRank, s.CrossSize))
}

func (h *horovod) put(w http.ResponseWriter, r *http.Request) {
	value, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxValue))
	if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
		http.Error(w, fmt.Sprintf("expected at most %d bytes", maxValue), http.StatusRequestEntityTooLarge)
		return
	}
	if err != nil {
		return // the connection has ended
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, _, ok := h.currentLocked(w, r); !ok {
		return
	}
	scope, key := r.PathValue("scope"), r.PathValue("key")
	before, exists := h.values[scope][key]
	size, keys := h.size+len(value)-len(before), h.keys
	if !exists {
		keys++
	}
	//guard:horovod-store-bounded
	if size > maxValues || keys > maxKeys {
		http.Error(w, fmt.Sprintf("expected at most %d bytes and %d keys in a generation", maxValues, maxKeys), http.StatusInsufficientStorage)
		return
	}
	if h.values[scope] == nil {
		h.values[scope] = map[string][]byte{}
	}
	h.values[scope][key], h.size, h.keys = value, size, keys
	w.Header().Set("Content-Length", "0")
}

// remove deletes a value. In a scope of a communicator, the key is a rank that has read all values: when all ranks have, the scope is deleted.
func (h *horovod) remove(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	defer h.mu.Unlock()
	ring, _, ok := h.currentLocked(w, r)
	if !ok {
		return
	}
	scope, key := r.PathValue("scope"), r.PathValue("key")
	if n := communicatorSize(ring, scope); n > 0 {
		if h.finished[scope] == nil {
			h.finished[scope] = map[string]bool{}
		}
		if rank, err := strconv.Atoi(key); err == nil && rank >= 0 && rank < n {
			h.finished[scope][key] = true
		}
		if len(h.finished[scope]) == n {
			delete(h.finished, scope)
			for key := range h.values[scope] {
				h.deleteLocked(scope, key)
			}
		}
	} else {
		h.deleteLocked(scope, key)
	}
	w.Header().Set("Content-Length", "0")
}

func (h *horovod) deleteLocked(scope, key string) {
	if value, ok := h.values[scope][key]; ok {
		h.size, h.keys = h.size-len(value), h.keys-1
		delete(h.values[scope], key)
	}
	if len(h.values[scope]) == 0 {
		delete(h.values, scope)
	}
}

// communicatorSize returns the number of processes of the communicator with a scope; 0: it is another scope.
func communicatorSize(ring rendezvous.Ring, scope string) int {
	if scope == "global" {
		s, _ := ring.Slot("", 0)
		return s.Size
	}
	if id, ok := strings.CutPrefix(scope, "local_"); ok {
		s, _ := ring.Slot(id, 0)
		return s.LocalSize
	}
	if text, ok := strings.CutPrefix(scope, "cross_"); ok {
		if local, err := strconv.Atoi(text); err == nil && local >= 0 {
			return ring.CrossSize(local)
		}
	}
	return 0
}
