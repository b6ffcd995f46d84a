package proxy

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

const (
	// maxStreams is the maximum number of streams. A new stream replaces the stream without readers that was used least recently.
	maxStreams = 1024
	// maxStreamBytes is the maximum memory of the specifications of all streams, in bytes.
	maxStreamBytes = 256 << 20
)

// stream is a specification with an id.
type stream struct {
	spec    *Spec
	readers int
	used    time.Time // when it was created, or when its last reader ended
}

// streams has all streams by id.
type streams struct {
	idle time.Duration // a stream without readers expires after this time

	mu    sync.Mutex
	byID  map[int64]*stream // guarded by mu
	bytes int64             // guarded by mu
}

// add returns the id of a new stream. Ids are random, so that the ids of an earlier process are not used again.
func (s *streams) add(spec *Spec) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire()
	//guard:proxy-stream-limit
	for len(s.byID) >= maxStreams || s.bytes+spec.bytes() > maxStreamBytes {
		oldest, found := int64(0), false
		for id, st := range s.byID {
			if st.readers == 0 && (!found || st.used.Before(s.byID[oldest].used)) {
				oldest, found = id, true
			}
		}
		if !found {
			return 0, fmt.Errorf("%w: %d streams have readers: read fewer files in a stream, or start another proxy", ErrTooManyStreams, len(s.byID))
		}
		s.remove(oldest)
	}
	for {
		//guard:proxy-random-id
		id := rand.Int64()
		if _, ok := s.byID[id]; !ok && id != 0 {
			s.byID[id] = &stream{spec: spec, used: time.Now()}
			s.bytes += spec.bytes()
			return id, nil
		}
	}
}

// use returns the specification of a stream, which does not expire until end is called.
func (s *streams) use(id int64) (spec *Spec, end func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire()
	st := s.byID[id]
	if st == nil {
		return nil, nil, fmt.Errorf("%w: stream_id %d: it has expired, or the proxy was restarted: create the stream again", ErrStreamGone, id)
	}
	st.readers++
	return st.spec, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		st.readers--
		st.used = time.Now()
	}, nil
}

// expire removes idle streams. mu is held.
func (s *streams) expire() {
	for id, st := range s.byID {
		//guard:proxy-idle-stream
		if st.readers == 0 && time.Since(st.used) >= s.idle {
			s.remove(id)
		}
	}
}

// remove is called with mu held.
func (s *streams) remove(id int64) {
	s.bytes -= s.byID[id].spec.bytes()
	delete(s.byID, id)
}
