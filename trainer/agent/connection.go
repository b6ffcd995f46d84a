package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"trainmaster/dataset"
	"trainmaster/recordio"
)

// request is a request of any operation.
type request struct {
	ID   uint64   `json:"id"`
	Op   string   `json:"op"`
	Wait *float64 `json:"wait"`

	Version  int      `json:"version"` // hello
	Paths    []string `json:"paths"`   // report
	Finished []int    `json:"finished"`
	Want     int      `json:"want"`
	Task     int      `json:"task"`
	Error    string   `json:"error"`
	Step     uint64   `json:"step"`
	N        int      `json:"n"`

	Generation uint64 `json:"generation"`

	Now  bool     `json:"now"`  // next
	Loss *float64 `json:"loss"` // progress
	Key  uint64   `json:"key"`  // free

	Evaluates bool               `json:"evaluates"` // of commands
	Metrics   map[string]float64 `json:"metrics"`   // of evaluated, with the next
	NotFinite string             `json:"not_finite"`

	Used [][2]int64 `json:"used"` // of used: tasks and their records
	body []byte     // of the operations of parameter servers

	chunk
}

// chunk is a chunk of a task, as the training process has it.
type chunk struct {
	Path        string `json:"path"`
	Offset      int64  `json:"offset"`
	Size        uint32 `json:"size"`
	Records     int64  `json:"records"` // also of progress
	Compression uint8  `json:"compression"`
	Layout      uint8  `json:"layout"`
	Checksum    uint32 `json:"checksum"`
	Stamp       stamp  `json:"stamp"`
}

// stamp is a dataset.Stamp as a list.
type stamp dataset.Stamp

func (s stamp) MarshalJSON() ([]byte, error) { return json.Marshal([]any{s.Size, s.ModTime, s.ETag}) }

func (s *stamp) UnmarshalJSON(data []byte) error {
	return json.Unmarshal(data, &[]any{&s.Size, &s.ModTime, &s.ETag})
}

func (c *chunk) index() (recordio.Index, error) {
	switch recordio.Layout(c.Layout) {
	//guard:agent-refuses-chunks-without-records
	case recordio.Parquet:
		return recordio.Index{}, invalidf("chunk: %s: expected RecordIO or TFRecord, found a Parquet file: read row group %d with a Parquet library", recordio.DisplayName(c.Path), c.Offset)
	case recordio.Range:
		return recordio.Index{}, invalidf("chunk: %s: expected a file, found a range: the records have the numbers %d to %d", recordio.DisplayName(c.Path), c.Offset, c.Offset+c.Records-1)
	}
	if c.Path == "" || c.Offset < 0 || c.Records < 1 || c.Records > math.MaxUint32 {
		return recordio.Index{}, invalidf("chunk: expected a chunk of a task, found path %q, offset %d and %d records", c.Path, c.Offset, c.Records)
	}
	return recordio.Index{
		Offset: c.Offset, Size: c.Size, Records: uint32(c.Records), Compression: recordio.Compression(c.Compression), Layout: recordio.Layout(c.Layout), Checksum: c.Checksum,
	}, nil
}

// reply is the reply to a request.
type reply struct {
	content any // its fields besides id; nil: none
	memory  *memory
	number  func() // nil, or numbers what content has: called immediately before it is sent
}

// encode returns the JSON of the reply to a request.
func (r reply) encode(id uint64) ([]byte, error) {
	body := fmt.Appendf(nil, `{"id":%d`, id)
	if r.content == nil {
		return append(body, '}'), nil
	}
	content, err := json.Marshal(r.content)
	if err != nil {
		return nil, err
	}
	return append(append(body, ','), content[1:]...), nil
}

type errorReply struct {
	Error *failure `json:"error"`
}

type chunkReply struct {
	FD      bool   `json:"fd"`
	Size    int    `json:"size"`
	Records int    `json:"records"`
	Gap     int    `json:"gap"`
	Key     uint64 `json:"key"`
}

func seconds(s float64) time.Duration {
	const most = 365 * 24 * 3600
	if math.IsNaN(s) {
		s = 0
	}
	return time.Duration(min(max(s, 0), most) * float64(time.Second))
}

// incoming is a request whose first part has taken effect.
type incoming struct {
	id   uint64 // 0: it gets no reply
	op   string
	wait *float64 // limit of work
	work work     // the rest; nil: there is none, and no reply
	sent func()   // nil, or called after the reply
}

// serve serves a connection until it ends. begin reads a request and does the part that takes effect before the next request.
func serve(ctx context.Context, conn *net.UnixConn, log *logrus.Entry, begin func(body []byte) (incoming, error)) error {
	ctx, cancel := context.WithCancel(ctx)
	s := newStream(conn)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	unanswered := make(chan struct{}, maxUnanswered)
	for {
		body, err := s.read()
		if err != nil {
			return err
		}
		r, err := begin(body)
		if err != nil {
			return fmt.Errorf("%w: %w", errFrame, err)
		}
		if r.work == nil {
			continue
		}
		select {
		case unanswered <- struct{}{}:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		//guard:requests-wait-for-no-other
		running.Go(func() {
			defer func() { <-unanswered }()
			limit, release := limited(ctx, r.wait)
			defer release()
			out, err := r.work(limit)
			if err != nil {
				out = reply{content: errorReply{failureOf(err)}}
			}
			if r.id == 0 {
				if err != nil && ctx.Err() == nil {
					log.WithError(err).WithField("op", r.op).Warn("request without a reply failed")
				}
				return
			}
			if err := s.write(r.id, out); err != nil && ctx.Err() == nil {
				log.WithError(err).WithField("op", r.op).Debug("reply not sent")
				conn.Close() // the peer cannot find the next frame
			}
			if r.sent != nil {
				r.sent()
			}
		})
	}
}

// serve serves a connection until it ends. main is the connection of the training process, which alone can make requests other than chunk and free.
func (a *agent) serve(conn *net.UnixConn, main bool) error {
	held := &holder{}
	defer a.chunks.freeAll(held)
	return serve(a.ctx, conn, a.log, func(body []byte) (incoming, error) {
		r := &request{}
		if err := json.Unmarshal(body, r); err != nil {
			return incoming{}, err
		}
		if isArena[r.Op] {
			r.body = bytes.Clone(body)
		}
		in := incoming{id: r.ID, op: r.Op, work: a.begin(r, main, held)}
		in.wait = r.Wait // begin can remove it
		if r.Op == "close" && main {
			in.sent = func() { a.closeOnce.Do(func() { close(a.closing) }) }
		}
		return in, nil
	})
}

// work is the part of a request that may wait.
type work func(context.Context) (reply, error)

// done is work of a request that is complete.
func done(context.Context) (reply, error) { return reply{}, nil }

func failing(err error) work {
	return func(context.Context) (reply, error) { return reply{}, err }
}

// begin does the part of a request that takes effect before the next request. It returns the rest; nil: there is none, and no reply.
func (a *agent) begin(r *request, main bool, held *holder) work {
	switch r.Op {
	case "chunk":
		return func(ctx context.Context) (reply, error) { return a.chunk(ctx, r, held) }
	case "free":
		a.chunks.free(held, r.Key)
		if r.ID == 0 {
			return nil
		}
		return done
	}
	if !main {
		return failing(invalidf("op: expected chunk or free on this connection, found %q: send it on the main connection", r.Op))
	}
	w := a.beginMain(r)
	if w == nil && r.ID != 0 {
		return done
	}
	return w
}

// chunk reads a chunk for a connection.
func (a *agent) chunk(ctx context.Context, r *request, held *holder) (reply, error) {
	ix, err := r.index()
	if err != nil {
		return reply{}, err
	}
	if r.ID == 0 {
		return reply{}, invalidf("id: expected a number above 0 in a request for a chunk, found 0")
	}
	e, err := a.chunks.get(ctx, held, r.Path, dataset.Stamp(r.Stamp), ix)
	if err != nil {
		return reply{}, err
	}
	return reply{content: chunkReply{FD: true, Size: e.size, Records: int(ix.Records), Gap: e.gap, Key: e.key}, memory: e.memory}, nil
}
