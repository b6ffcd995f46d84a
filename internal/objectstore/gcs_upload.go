package objectstore

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"

	cloud "gocloud.dev/blob/driver"
)

// gcsChunk is the size of a request of an upload; the store requires a multiple of 256 KiB.
const gcsChunk = 8 << 20

// NewTypedWriter implements the driver.
func (g *gcs) NewTypedWriter(ctx context.Context, key, contentType string, o *cloud.WriterOptions) (cloud.Writer, error) {
	query := url.Values{"name": {key}}
	if o.IfNotExist {
		query.Set("ifGenerationMatch", "0")
	}
	return &gcsWriter{ctx: ctx, gcs: g, query: query, contentType: contentType}, nil
}

// gcsWriter uploads an object of at most a chunk with one request. It sends a larger object in chunks: while the source of the bytes
// pauses, no request is open. Each request is sent again after a failure. The store ignores bytes that it has.
type gcsWriter struct {
	ctx         context.Context //nolint:containedctx // of the driver
	gcs         *gcs
	query       url.Values
	contentType string
	buffer      bytes.Buffer
	uploaded    bool
	err         error
}

// Write implements the driver. The project writes by Upload only.
func (w *gcsWriter) Write(p []byte) (int, error) { return w.buffer.Write(p) }

// Upload implements the driver: it reads r to its end. If r fails, there is no object.
func (w *gcsWriter) Upload(r io.Reader) error {
	w.uploaded = true
	w.err = w.upload(r)
	return nil // Close returns the error
}

func (w *gcsWriter) upload(from io.Reader) error {
	session, r := "", bufio.NewReader(from)
	for off := int64(0); ; off += gcsChunk {
		w.buffer.Reset()
		//guard:gcs-upload-chunk
		if _, err := io.Copy(&w.buffer, io.LimitReader(r, gcsChunk)); err != nil {
			return err
		}
		_, err := r.Peek(1)
		isLast := errors.Is(err, io.EOF)
		if err != nil && !isLast {
			return err
		}
		if session == "" {
			if isLast {
				return w.sendBuffer()
			}
			if session, err = w.begin(); err != nil {
				return err
			}
		}
		if err := w.sendChunk(session, off, isLast); err != nil || isLast {
			return err
		}
	}
}

func (w *gcsWriter) address(kind string) string {
	w.query.Set("uploadType", kind)
	return w.gcs.base + "/upload/storage/v1/b/" + url.PathEscape(w.gcs.bucket) + "/o?" + w.query.Encode()
}

// begin returns the address for the chunks.
func (w *gcsWriter) begin() (string, error) {
	answer, err := w.gcs.do(w.ctx, http.MethodPost, w.address("resumable"), http.Header{"X-Upload-Content-Type": {w.contentType}}, nil, gcsAttempts)
	if err := done(answer, err); err != nil {
		return "", err
	}
	session, err := answer.Location()
	if err != nil {
		return "", fmt.Errorf("%w: %w", errOtherService, err)
	}
	base, err := url.Parse(w.gcs.base)
	if err != nil {
		return "", err
	}
	session.Scheme, session.Host = base.Scheme, base.Host // no other server receives the token
	return session.String(), nil
}

// sendChunk sends the buffer, which begins at off.
func (w *gcsWriter) sendChunk(session string, off int64, isLast bool) error {
	p, size := w.buffer.Bytes(), off+int64(w.buffer.Len())
	total := "*"
	if isLast {
		total = strconv.FormatInt(size, 10)
	}
	for {
		span := "*"
		if len(p) > 0 {
			span = fmt.Sprintf("%d-%d", off, size-1)
		}
		header := http.Header{"Content-Type": {w.contentType}, "Content-Range": {"bytes " + span + "/" + total}}
		header.Set("X-GUploader-No-308", "yes") // the status 308 is a redirect
		//guard:gcs-chunk-sent-again
		answer, err := w.gcs.do(w.ctx, http.MethodPut, session, header, p, gcsAttempts)
		if err != nil {
			return err
		}
		if answer.Header.Get("X-Http-Status-Code-Override") != strconv.Itoa(http.StatusPermanentRedirect) {
			return checkUploaded(answer, size, isLast)
		}
		if err := done(answer, nil); err != nil {
			return err
		}
		var last int64
		if _, err := fmt.Sscanf(answer.Header.Get("Range"), "bytes=0-%d", &last); err != nil || last < off || last >= size {
			return fmt.Errorf("%w: expected a Range that ends at %d to %d, found %q", errOtherRange, off, size-1, answer.Header.Get("Range"))
		}
		//guard:gcs-kept-bytes
		p, off = p[last+1-off:], last+1
		if len(p) == 0 && !isLast {
			return nil
		}
	}
}

// checkUploaded requires that the answer describes an object of the size.
func checkUploaded(answer *http.Response, size int64, isLast bool) error {
	var o gcsObject
	err := json.NewDecoder(answer.Body).Decode(&o)
	if err := errors.Join(err, answer.Body.Close()); err != nil {
		return fmt.Errorf("decode the description of an object: %w", unexpectedEnd(err))
	}
	//guard:gcs-uploaded-size
	if !isLast || o.Size != size {
		return fmt.Errorf("%w: %d bytes were sent, the object has %d", errOtherRange, size, o.Size)
	}
	return nil
}

func (w *gcsWriter) sendBuffer() error {
	header := http.Header{"Content-Type": {w.contentType}}
	return done(w.gcs.do(w.ctx, http.MethodPost, w.address("media"), header, w.buffer.Bytes(), gcsAttempts))
}

// Close implements the driver.
func (w *gcsWriter) Close() error {
	if w.uploaded || w.err != nil {
		return w.err
	}
	if w.ctx.Err() != nil {
		return context.Cause(w.ctx)
	}
	return w.sendBuffer()
}

// done reads an answer to its end.
func done(answer *http.Response, err error) error {
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, answer.Body)
	return errors.Join(err, answer.Body.Close())
}
