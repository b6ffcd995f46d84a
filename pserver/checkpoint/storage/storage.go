// Package storage opens what --checkpoint-dir names: a folder, or a bucket of an
// object store that speaks S3, by way of gocloud.dev/blob.
//
// A bucket keeps the promises of a folder in its own way. An object appears whole
// when its upload ends, so that it needs no other name before and no fsync after.
// A folder that is one process's alone is an object that is created only if it is
// absent. Every wait ends: with the context, or when the connection has not moved
// a byte for a while, after which the SDK tries again twice. What a bucket says
// about itself rather than about an object is [checkpoint.ErrUnavailable], with
// what to do about it.
package storage

import (
	"fmt"
	"net/url"
	"strings"

	"trainmaster/pserver/checkpoint"
)

// Open opens a folder, or the place in a bucket that a URL names: s3://bucket/prefix, with the parameters of
// [s3blob.URLOpener] (endpoint, region, use_path_style, profile, ...). Nothing is asked of the store yet.
func Open(where string) (checkpoint.Place, error) {
	if !IsURL(where) {
		return checkpoint.Disk(where), nil
	}
	u, err := url.Parse(where)
	if err != nil {
		return nil, fmt.Errorf("%q: expected a folder, or s3://bucket/prefix: %w", where, err)
	}
	if u.User != nil {
		return nil, fmt.Errorf("%q: expected a URL without credentials; they come from the environment (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY), ~/.aws or the machine's role", u.Redacted())
	}
	if u.Scheme != s3Scheme || u.Host == "" {
		return nil, fmt.Errorf("%q: expected a folder, or s3://bucket/prefix, with endpoint=URL behind a ? for a store other than Amazon's", where)
	}
	return openBucket(u)
}

// IsURL says whether Open takes where for a URL.
func IsURL(where string) bool { return strings.Contains(where, "://") }
