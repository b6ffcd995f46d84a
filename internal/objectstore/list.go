package objectstore

import (
	"context"
	"fmt"
	"io"
	"iter"
	"strings"

	"gocloud.dev/blob"
)

// List yields the keys that begin with prefix, in their order. With the delimiter "/" it yields only the keys without a further slash after
// prefix, and the beginnings of others up to that slash. An error is the last pair.
func (b *Bucket) List(ctx context.Context, prefix, delimiter string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		list := b.Objects.List(&blob.ListOptions{Prefix: prefix, Delimiter: delimiter})
		for {
			o, err := next(ctx, list)
			//guard:cut-list-fails
			if err == io.EOF { //nolint:errorlint // a connection that was cut is one too, wrapped: the list would seem to end there
				return
			}
			if err != nil {
				yield("", err)
				return
			}
			if !yield(o.Key, nil) {
				return
			}
		}
	}
}

// next returns the next object of a list.
func next(ctx context.Context, list *blob.ListIterator) (o *blob.ListObject, err error) {
	//guard:list-without-properties
	defer func() {
		if cause := recover(); cause != nil { // of the driver of Azure, if the list does not have what it requires
			err = fmt.Errorf("%w: %v", errOtherService, cause)
		}
	}()
	return list.Next(ctx)
}

// Matching yields the keys of the objects that a location stands for. An error is the last pair; it names the location.
func (b *Bucket) Matching(ctx context.Context, l Location) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		delimiter := ""
		if rest, ok := strings.CutPrefix(l.Pattern, l.Key); ok && !strings.Contains(rest, "/") {
			delimiter = "/" // nothing below the matched segment
		}
		for key, err := range b.List(ctx, l.Key, delimiter) {
			if err != nil {
				yield("", b.explain(ctx, "list", l.Key, err))
				return
			}
			if l.Matches(key) && !yield(key, nil) {
				return
			}
		}
	}
}
