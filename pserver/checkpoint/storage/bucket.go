package storage

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"path"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go"

	"trainmaster/internal/objectstore"
	"trainmaster/pserver/checkpoint"
)

// claimObject is the object that claims a directory for one process.
const claimObject = "CLAIM"

// stallLimit is the time after which a connection that transfers no byte fails. A variable for tests.
var stallLimit = 30 * time.Second

// bucket implements [checkpoint.Place] by the objects of a bucket.
type bucket struct{ *objectstore.Bucket }

func openBucket(u *url.URL) (*bucket, error) {
	b, err := objectstore.Open(u, stallLimit)
	if err != nil {
		return nil, err
	}
	return &bucket{b}, nil
}

// under returns the prefix of the objects of a directory.
func under(dir string) string {
	if dir == "" {
		return ""
	}
	return dir + "/"
}

// List implements [checkpoint.Place].
func (b *bucket) List(ctx context.Context, dir string) (names []string, err error) {
	for key, err := range b.Bucket.List(ctx, under(dir), "/") {
		if err != nil {
			return names, b.failed("list", under(dir), err)
		}
		names = append(names, path.Base(key))
	}
	return names, nil
}

// Prepare implements [checkpoint.Place]: there are no dirs.
func (b *bucket) Prepare(string) error { return nil }

// Sync implements [checkpoint.Place]. Acknowledged objects are durable.
func (b *bucket) Sync(string) error { return nil }

// Claim implements [checkpoint.Place].
func (b *bucket) Claim(ctx context.Context, dir string) error {
	token := rand.Text() // identifies our own claim if its answer was lost
	claim, err := b.Create(ctx, path.Join(dir, claimObject), int64(len(token)), checkpoint.Final)
	if err != nil {
		return err
	}
	defer claim.Close()
	if _, err := io.WriteString(claim, token); err != nil {
		return err
	}
	return claim.Publish()
}

// Remove implements [checkpoint.Place].
func (b *bucket) Remove(ctx context.Context, name string) error {
	if err := b.Objects.Delete(ctx, name); err != nil {
		if err = b.failed("remove", name, err); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// RemoveAll implements [checkpoint.Place]. It removes the claim last: the directory has an owner until it is empty.
func (b *bucket) RemoveAll(ctx context.Context, dir string) error {
	//guard:unfinished-uploads-removed
	if err := b.dropUploads(ctx, dir); err != nil {
		return err
	}
	claim := path.Join(dir, claimObject)
	for key, err := range b.Bucket.List(ctx, under(dir), "") {
		if err != nil {
			return b.failed("list", under(dir), err)
		}
		if key == claim {
			continue
		}
		if err := b.Remove(ctx, key); err != nil {
			return err
		}
	}
	return b.Remove(ctx, claim)
}

// dropUploads aborts unfinished uploads below dir, which killed processes leave. If the store does not list them, they stay until
// its own rules remove them.
func (b *bucket) dropUploads(ctx context.Context, dir string) error {
	if b.Client == nil { // azblob and gs drop unfinished uploads after a week
		return nil
	}
	pages := s3.NewListMultipartUploadsPaginator(b.Client, &s3.ListMultipartUploadsInput{Bucket: &b.Name, Prefix: aws.String(b.Prefix + under(dir))})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if _, refused := errors.AsType[smithy.APIError](err); refused {
			return nil
		}
		if err != nil {
			return b.failed("list uploads", under(dir), err)
		}
		for _, u := range page.Uploads {
			if _, err := b.Client.AbortMultipartUpload(ctx, &s3.AbortMultipartUploadInput{Bucket: &b.Name, Key: u.Key, UploadId: u.UploadId}); err != nil {
				return b.failed("end the upload", strings.TrimPrefix(aws.ToString(u.Key), b.Prefix), err)
			}
		}
	}
	return nil
}

// failed names the operation, the object, the cause and the remedy.
func (b *bucket) failed(do, key string, err error) error {
	if objectstore.IsNotFound(err) {
		return fmt.Errorf("%s %s: %w", do, b.URL(key), fs.ErrNotExist)
	}
	action, err := objectstore.Explain(err)
	//guard:unavailable-is-not-damaged
	return fmt.Errorf("%w: %s %s: %s: %w", checkpoint.ErrUnavailable, do, b.At(key), action, err)
}
