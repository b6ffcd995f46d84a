package objectstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
)

const (
	dialLimit = 10 * time.Second

	mostRedirects = 10
)

var (
	// errOtherService is the error of an answer that no object store sends.
	errOtherService = errors.New("the answer is not of an object store")

	errRedirects = fmt.Errorf("%w: expected at most %d redirects", errOtherService, mostRedirects)
)

// client sends requests. Its errors lack the parameters of a URL, which can have a signature.
type client struct{ http.Client }

// Do sends a request.
func (c *client) Do(r *http.Request) (*http.Response, error) {
	answer, err := c.Client.Do(r)
	//guard:error-without-parameters
	if failed, ok := errors.AsType[*url.Error](err); ok {
		failed.URL, _, _ = strings.Cut(failed.URL, "?")
	}
	return answer, err
}

// newClient returns the client of the SDK, except that a request that transfers no byte for stallLimit fails.
func newClient(stallLimit time.Duration) *client {
	transport := awshttp.NewBuildableClient().WithDialerOptions(func(d *net.Dialer) { d.Timeout = dialLimit }).GetTransport()
	// After a failure of the network, no later request waits for another connection that was idle.
	//guard:idle-store-connection-closed
	transport.IdleConnTimeout = min(transport.IdleConnTimeout, stallLimit)
	// A stalled request ends its stream. The connection is shared, and ends if it answers no ping.
	//guard:stalled-connection-closed
	transport.HTTP2 = &http.HTTP2Config{SendPingTimeout: stallLimit / 2, PingTimeout: stallLimit / 2, WriteByteTimeout: stallLimit}
	return &client{http.Client{Transport: &moving{transport, stallLimit}, CheckRedirect: checkRedirect}}
}

func checkRedirect(r *http.Request, via []*http.Request) error {
	//guard:redirect-without-parameters
	r.Header.Del("Referer") // it has the parameters of the former URL
	switch r.Response.StatusCode {
	case http.StatusTemporaryRedirect, http.StatusPermanentRedirect: // the others would make another request of it
		//guard:redirects-limited
		if len(via) > mostRedirects {
			return errRedirects
		}
		return nil
	}
	return http.ErrUseLastResponse
}

// stalledError is the error of a request without progress. It is a [net.Error].
type stalledError struct{ limit time.Duration }

func (e *stalledError) Error() string   { return fmt.Sprintf("no byte was transferred for %v", e.limit) }
func (e *stalledError) Timeout() bool   { return true }
func (e *stalledError) Temporary() bool { return true }

// moving ends a request that transfers no byte for limit, also while other requests use its connection. The time in which the caller does not
// read the answer does not count.
type moving struct {
	http.RoundTripper
	limit time.Duration
}

// RoundTrip implements [http.RoundTripper].
func (m *moving) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(r.Context())
	w := &watch{ctx: ctx, cancel: cancel, limit: m.limit}
	//guard:stalled-request-ends
	w.timer = time.AfterFunc(m.limit, func() { cancel(&stalledError{m.limit}) })
	answer, err := m.RoundTripper.RoundTrip(w.sending(r))
	w.endSending()
	if err != nil {
		err = w.cause(err)
		cancel(nil)
		return nil, err
	}
	answer.Body = &answerBody{answer.Body, w}
	return answer, nil
}

// CloseIdleConnections is called by the method of the client.
func (m *moving) CloseIdleConnections() {
	if t, ok := m.RoundTripper.(*http.Transport); ok {
		t.CloseIdleConnections()
	}
}

// watch is the timer of one request.
type watch struct {
	ctx    context.Context //nolint:containedctx // of the request
	cancel context.CancelCauseFunc
	limit  time.Duration

	mu    sync.Mutex
	timer *time.Timer // guarded by mu until the answer comes, then of the reader of the answer
	sent  bool        // guarded by mu; the answer has come, or there is none
}

// sending returns the request with a body that extends the time.
func (w *watch) sending(r *http.Request) *http.Request {
	r = r.WithContext(w.ctx)
	if r.Body == nil || r.Body == http.NoBody {
		return r
	}
	r.Body = &requestBody{r.Body, w}
	if again := r.GetBody; again != nil {
		r.GetBody = func() (io.ReadCloser, error) {
			body, err := again()
			return &requestBody{body, w}, err
		}
	}
	return r
}

func (w *watch) endSending() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sent = true
	w.timer.Stop()
}

func (w *watch) extendSending() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.sent {
		w.timer.Reset(w.limit)
	}
}

// cause explains the error of a request that was ended.
func (w *watch) cause(err error) error {
	if stalled, ok := errors.AsType[*stalledError](context.Cause(w.ctx)); ok {
		return stalled
	}
	return err
}

// requestBody is read while it is sent.
type requestBody struct {
	io.ReadCloser
	watch *watch
}

func (b *requestBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	//guard:upload-extends-time
	b.watch.extendSending()
	return n, err
}

type answerBody struct {
	io.ReadCloser
	watch *watch
}

func (b *answerBody) Read(p []byte) (int, error) {
	//guard:stalled-answer-ends
	b.watch.timer.Reset(b.watch.limit)
	n, err := b.ReadCloser.Read(p)
	b.watch.timer.Stop()
	if err != nil && err != io.EOF { //nolint:errorlint // the bare error is the end
		err = b.watch.cause(err)
	}
	return n, err
}

func (b *answerBody) Close() error {
	err := b.ReadCloser.Close()
	b.watch.timer.Stop()
	b.watch.cancel(nil)
	return err
}
