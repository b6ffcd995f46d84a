// Package storage implements [checkpoint.Place] for the value of --checkpoint-dir: a directory, or a bucket of an object
// store through gocloud.dev/blob: s3://, azblob:// or gs://.
//
// A bucket gives the guarantees of a directory by other means. An object appears complete when its upload ends, so it needs no
// temporary name and no fsync. The claim on a directory is an object that is created only if it is absent.
//
// Every wait ends: with the context, or when the connection transfers no byte for 30 s, after which the SDK retries twice. An error
// of the store as a whole, not of one object, is [checkpoint.ErrUnavailable] and contains the remedy.
package storage

import (
	"fmt"
	"net/url"
	"slices"
	"strings"

	"trainmaster/internal/objectstore"
	"trainmaster/pserver/checkpoint"
)

// Open opens a directory, or a place in a bucket: scheme://bucket/prefix with the parameters of [objectstore.Open]. It sends no request to
// the store.
func Open(where string) (checkpoint.Place, error) {
	if !IsURL(where) {
		return checkpoint.Disk(where), nil
	}
	u, err := url.Parse(where)
	if err != nil {
		return nil, fmt.Errorf("%q: expected a directory or s3://bucket/prefix: %w", where, err)
	}
	if u.User != nil {
		return nil, fmt.Errorf("%q: expected a URL without credentials; they come from the environment (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AZURE_STORAGE_KEY, GOOGLE_APPLICATION_CREDENTIALS), ~/.aws or the machine's role", u.Redacted())
	}
	if !slices.Contains(objectstore.Schemes(), u.Scheme) || u.Host == "" {
		return nil, fmt.Errorf("%q: expected a directory or s3://bucket/prefix (azblob://, gs://), with ?endpoint=URL for a store other than Amazon's", where)
	}
	return openBucket(u)
}

// IsURL reports whether Open takes where for a URL.
func IsURL(where string) bool { return strings.Contains(where, "://") }
