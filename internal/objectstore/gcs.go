package objectstore

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"gocloud.dev/blob"
	cloud "gocloud.dev/blob/driver"
	"gocloud.dev/gcerrors"
)

// GCSScheme is the scheme of the URL of a bucket of Google Cloud Storage.
const GCSScheme = "gs"

const (
	gcsEndpoint = "https://storage.googleapis.com"
	gcsScope    = "https://www.googleapis.com/auth/devstorage.read_write"
	gcsPage     = 1000 // objects of a list; also the maximum of the store

	gcsAttempts = 3
)

// openGCS opens gs://bucket with the parameters endpoint (of an emulator: no credentials are sent to it) and anonymous=true.
func openGCS(u *url.URL, b *Bucket) error {
	g := &gcs{base: gcsEndpoint, bucket: u.Host, client: b.http}
	anonymous := false
	for name, values := range u.Query() {
		switch {
		case name == "endpoint":
			g.base, anonymous = strings.TrimSuffix(values[0], "/"), true
		case name == "anonymous" && values[0] == "true":
			anonymous = true
		default:
			return fmt.Errorf("%s: expected the parameters endpoint=URL and anonymous=true, found %s=%s", b, name, values[0])
		}
	}
	if !anonymous {
		g.source = &lazyToken{}
	}
	b.Objects, b.driver = blob.NewBucket(g), gcsDriver
	return nil
}

// gcs implements the driver of gocloud.dev by the JSON API of Google Cloud Storage.
type gcs struct {
	base, bucket string
	client       *client
	source       *lazyToken // nil: anonymous
}

// gcsRead is the request of a read, for the driver.
type gcsRead struct {
	generation string
	once       bool // not repeated
}

// gcsAnswer is the answer to a read, for the driver.
type gcsAnswer struct{ generation, contentRange string }

var gcsDriver = driver{
	pin: func(as func(any) bool, stamp string) error {
		var in *gcsRead
		if !as(&in) {
			return errors.New("no request of gs")
		}
		//guard:gcs-read-pinned
		in.generation = stamp
		in.once = true
		return nil
	},
	answered: func(as func(any) bool) (string, string) {
		var out gcsAnswer
		as(&out)
		return out.generation, out.contentRange
	},
}

// gcsError is an answer that refuses.
type gcsError struct {
	status int
	reason string // "": the answer is not of the JSON API
	text   string
}

func newGCSError(answer *http.Response) *gcsError {
	text, _ := io.ReadAll(io.LimitReader(answer.Body, 16<<10)) //nolint:errcheck // the status is the error
	e := &gcsError{status: answer.StatusCode, text: string(text)}
	var body struct {
		Error struct {
			Errors []struct {
				Reason string `json:"reason"`
			} `json:"errors"`
		} `json:"error"`
	}
	if json.Unmarshal(text, &body) == nil && len(body.Error.Errors) > 0 {
		e.reason = body.Error.Errors[0].Reason
	}
	return e
}

func (e *gcsError) Error() string {
	return fmt.Sprintf("%d %s: %.200s", e.status, http.StatusText(e.status), strings.Join(strings.Fields(e.text), " "))
}

// do sends a request, with an Authorization if there are credentials. A request without effect, or with a condition, is repeated.
func (g *gcs) do(ctx context.Context, method, address string, header http.Header, body []byte, attempts int) (answer *http.Response, err error) {
	pause := firstPause
	for attempt := 1; ; attempt++ {
		answer, err = g.send(ctx, method, address, header, bytes.NewReader(body))
		if err == nil || attempt >= attempts || isFinal(err) || ctx.Err() != nil {
			return answer, err
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(pause):
			pause *= 4
		}
	}
}

func (g *gcs) send(ctx context.Context, method, address string, header http.Header, body io.Reader) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, method, address, body)
	if err != nil {
		return nil, err
	}
	for name, values := range header {
		r.Header[name] = values
	}
	// The store must not decompress: ranges are of the stored bytes.
	r.Header.Set("Accept-Encoding", "gzip")
	if g.source != nil {
		token, err := g.source.token(ctx, &g.client.Client)
		if err != nil {
			return nil, err
		}
		token.SetAuthHeader(r)
	}
	answer, err := g.client.Do(r)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode < http.StatusMultipleChoices {
		return answer, nil
	}
	defer answer.Body.Close()
	return nil, newGCSError(answer)
}

func (g *gcs) object(key string) string {
	return g.base + "/storage/v1/b/" + url.PathEscape(g.bucket) + "/o/" + url.PathEscape(key)
}

// gcsObject is the description of an object.
type gcsObject struct {
	Name        string    `json:"name"`
	Size        int64     `json:"size,string"`
	Generation  string    `json:"generation"`
	Updated     time.Time `json:"updated"`
	ContentType string    `json:"contentType"`
}

// Attributes implements the driver.
func (g *gcs) Attributes(ctx context.Context, key string) (*cloud.Attributes, error) {
	answer, err := g.do(ctx, http.MethodGet, g.object(key), nil, nil, gcsAttempts)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	var o gcsObject
	if err := json.NewDecoder(answer.Body).Decode(&o); err != nil {
		return nil, fmt.Errorf("decode the description of an object: %w", unexpectedEnd(err))
	}
	return &cloud.Attributes{ContentType: o.ContentType, ModTime: o.Updated, Size: o.Size, ETag: o.Generation}, nil
}

// unexpectedEnd makes the end of a cut answer an error that no caller takes for the end of a list.
func unexpectedEnd(err error) error {
	if err == io.EOF { //nolint:errorlint // the decoder returns the bare error
		return io.ErrUnexpectedEOF
	}
	return err
}

// ListPaged implements the driver.
func (g *gcs) ListPaged(ctx context.Context, o *cloud.ListOptions) (*cloud.ListPage, error) {
	query := url.Values{
		"prefix": {o.Prefix}, "maxResults": {strconv.Itoa(gcsPage)}, "fields": {"nextPageToken,prefixes,items(name,size,updated)"},
	}
	if o.Delimiter != "" {
		query.Set("delimiter", o.Delimiter)
	}
	if len(o.PageToken) > 0 {
		query.Set("pageToken", string(o.PageToken))
	}
	answer, err := g.do(ctx, http.MethodGet, g.base+"/storage/v1/b/"+url.PathEscape(g.bucket)+"/o?"+query.Encode(), nil, nil, gcsAttempts)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	var page struct {
		NextPageToken string      `json:"nextPageToken"`
		Prefixes      []string    `json:"prefixes"`
		Items         []gcsObject `json:"items"`
	}
	if err := json.NewDecoder(answer.Body).Decode(&page); err != nil {
		return nil, fmt.Errorf("decode a list: %w", unexpectedEnd(err))
	}
	out := &cloud.ListPage{NextPageToken: []byte(page.NextPageToken)}
	for _, item := range page.Items {
		out.Objects = append(out.Objects, &cloud.ListObject{Key: item.Name, Size: item.Size, ModTime: item.Updated})
	}
	for _, prefix := range page.Prefixes {
		out.Objects = append(out.Objects, &cloud.ListObject{Key: prefix, IsDir: true})
	}
	slices.SortFunc(out.Objects, func(a, b *cloud.ListObject) int { return strings.Compare(a.Key, b.Key) })
	return out, nil
}

// NewRangeReader implements the driver.
func (g *gcs) NewRangeReader(ctx context.Context, key string, off, n int64, o *cloud.ReaderOptions) (cloud.Reader, error) {
	in := &gcsRead{}
	if o.BeforeRead != nil {
		if err := o.BeforeRead(func(i any) bool {
			p, ok := i.(**gcsRead)
			if ok {
				*p = in
			}
			return ok
		}); err != nil {
			return nil, err
		}
	}
	query := url.Values{}
	if in.generation != "" {
		query.Set("generation", in.generation)
	}
	header := http.Header{}
	switch {
	case n >= 0:
		header.Set("Range", fmt.Sprintf("bytes=%d-%d", off, off+max(n, 1)-1))
	case off > 0:
		header.Set("Range", fmt.Sprintf("bytes=%d-", off))
	}
	attempts := gcsAttempts
	if in.once {
		attempts = 1
	}
	description := g.object(key) + "?" + query.Encode()
	query.Set("alt", "media")
	answer, err := g.do(ctx, http.MethodGet, g.object(key)+"?"+query.Encode(), header, nil, attempts)
	if statusOf(err) == http.StatusNotFound && !IsNotFound(err) {
		// The answer for the bytes of a missing object is a text. Only the answer for its description has a reason.
		if missing := done(g.do(ctx, http.MethodGet, description, nil, nil, attempts)); missing != nil {
			err = missing
		}
	}
	if err != nil {
		return nil, err
	}
	r := &gcsReader{ReadCloser: answer.Body, answer: gcsAnswer{answer.Header.Get("X-Goog-Generation"), answer.Header.Get("Content-Range")}}
	r.attributes.ContentType = answer.Header.Get("Content-Type")
	r.attributes.ModTime, _ = http.ParseTime(answer.Header.Get("Last-Modified"))
	r.attributes.Size = answer.ContentLength
	if _, size, ok := strings.Cut(r.answer.contentRange, "/"); ok {
		if r.attributes.Size, err = strconv.ParseInt(size, 10, 64); err != nil {
			return nil, errors.Join(fmt.Errorf("%w: Content-Range %q", errOtherRange, r.answer.contentRange), answer.Body.Close())
		}
	}
	return r, nil
}

// gcsReader implements the driver's Reader.
type gcsReader struct {
	io.ReadCloser
	attributes cloud.ReaderAttributes
	answer     gcsAnswer
}

func (r *gcsReader) Attributes() *cloud.ReaderAttributes { return &r.attributes }

func (r *gcsReader) As(i any) bool {
	p, ok := i.(*gcsAnswer)
	if ok {
		*p = r.answer
	}
	return ok
}

// Delete implements the driver.
func (g *gcs) Delete(ctx context.Context, key string, _ *cloud.DeleteOptions) error {
	return done(g.do(ctx, http.MethodDelete, g.object(key), nil, nil, gcsAttempts))
}

var errUnsupported = errors.New("not supported")

// Copy implements the driver.
func (g *gcs) Copy(context.Context, string, string, *cloud.CopyOptions) error { return errUnsupported }

// SignedURL implements the driver.
func (g *gcs) SignedURL(context.Context, string, *cloud.SignedURLOptions) (string, error) {
	return "", errUnsupported
}

// As implements the driver.
func (g *gcs) As(any) bool { return false }

// ErrorAs implements the driver.
func (g *gcs) ErrorAs(error, any) bool { return false }

// ErrorCode implements the driver.
func (g *gcs) ErrorCode(err error) gcerrors.ErrorCode {
	switch {
	case IsNotFound(err):
		return gcerrors.NotFound
	case statusOf(err) == http.StatusPreconditionFailed:
		return gcerrors.FailedPrecondition
	case errors.Is(err, context.Canceled):
		return gcerrors.Canceled
	case errors.Is(err, errUnsupported):
		return gcerrors.Unimplemented
	}
	return gcerrors.Unknown
}

// Close implements the driver.
func (g *gcs) Close() error { return nil }
