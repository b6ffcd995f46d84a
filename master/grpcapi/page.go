package grpcapi

import (
	"cmp"
	"encoding/base64"
	"encoding/binary"
)

const (
	defaultPage = 500
	maxPage     = 1000
)

// pageCursor is the position of an entry in the order of its list. A page token is the place of the last entry of the
// previous page, so that a page begins at the right entry even if the list has changed.
type pageCursor struct{ list, dataset, pass, at uint64 }

func (p pageCursor) compare(o pageCursor) int {
	return cmp.Or(cmp.Compare(p.list, o.list), cmp.Compare(p.dataset, o.dataset), cmp.Compare(p.pass, o.pass), cmp.Compare(p.at, o.at))
}

func (p pageCursor) token() string {
	var b []byte
	for _, v := range []uint64{p.list, p.dataset, p.pass, p.at} {
		b = binary.AppendUvarint(b, v)
	}
	return base64.RawURLEncoding.EncodeToString(b)
}

func parsePlace(token string) (pageCursor, error) {
	bad := badArgument("page_token", "expected a token that this call has returned, found %.100q", token)
	b, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil {
		return pageCursor{}, bad
	}
	var p pageCursor
	for _, field := range []*uint64{&p.list, &p.dataset, &p.pass, &p.at} {
		v, n := binary.Uvarint(b)
		if n <= 0 {
			return pageCursor{}, bad
		}
		*field, b = v, b[n:]
	}
	if len(b) > 0 {
		return pageCursor{}, bad
	}
	return p, nil
}

// page receives the entries of a list in order and keeps the entries of one page.
type page[E any] struct {
	entries []E
	size    int
	begun   bool // after is set
	after   pageCursor
	last    pageCursor // of entries
	more    bool
}

func newPage[E any](size int32, token string) (*page[E], error) {
	if size < 0 {
		return nil, badArgument("page_size", "expected 0 (for %d) or more, found %d", defaultPage, size)
	}
	p := &page[E]{size: min(int(size), maxPage)}
	if size == 0 {
		p.size = defaultPage
	}
	if token != "" {
		after, err := parsePlace(token)
		if err != nil {
			return nil, err
		}
		p.begun, p.after = true, after
	}
	return p, nil
}

func (p *page[E]) add(at pageCursor, entry E) {
	switch {
	case p.begun && at.compare(p.after) <= 0:
	case len(p.entries) == p.size:
		p.more = true
	default:
		p.entries, p.last = append(p.entries, entry), at
	}
}

// next returns the token of the next page, or "" after the last page.
func (p *page[E]) next() string {
	if !p.more {
		return ""
	}
	return p.last.token()
}
