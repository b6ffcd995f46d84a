package storage

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials/ec2rolecreds"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go"
	"github.com/aws/smithy-go/logging"
	"gocloud.dev/blob"
	"gocloud.dev/blob/s3blob"

	"trainmaster/pserver/checkpoint"
)

const (
	s3Scheme = s3blob.Scheme

	// anyRegion is the region for stores without regions, which ignore it.
	anyRegion = "us-east-1"

	// claimObject is the object that claims a directory for one process.
	claimObject = "CLAIM"
)

// bucket is the objects with a prefix in a bucket.
type bucket struct {
	objects  *blob.Bucket // names are relative to the prefix
	client   *s3.Client   // for what objects does not know: uploads that were not finished
	http     *http.Client
	name     string // of the bucket
	prefix   string // "" or with a slash at its end
	endpoint string // as the URL has it; "": Amazon's
}

func openBucket(u *url.URL) (*bucket, error) {
	b := &bucket{name: u.Host, endpoint: u.Query().Get("endpoint"), http: newHTTPClient()}
	if prefix := strings.Trim(path.Clean("/"+u.Path), "/"); prefix != "" {
		b.prefix = prefix + "/"
	}
	if e, err := url.Parse(b.endpoint); err != nil || e.User != nil || b.endpoint != "" && e.Host == "" {
		return nil, fmt.Errorf("%s: expected endpoint to be a URL without credentials, such as http://127.0.0.1:9000", b)
	}
	ctx := context.Background() // only files and the environment are read
	opener := &s3blob.URLOpener{}
	of, err := opener.OpenBucketURL(ctx, u)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", b, err)
	}
	defer of.Close()
	var client *s3.Client
	if !of.As(&client) {
		return nil, fmt.Errorf("%s: %T is no client of S3", b, of)
	}
	options := client.Options()
	if options.Region == "" && b.endpoint == "" {
		return nil, fmt.Errorf("%s: expected the region of the bucket: add region=NAME to the URL, or set AWS_REGION", b)
	}
	b.client = s3.New(options, func(o *s3.Options) {
		o.HTTPClient = b.http
		o.Logger = logging.Nop{} // errors contain the same text
		if aws.IsCredentialsProvider(o.Credentials, (*ec2rolecreds.Provider)(nil)) && !asksForMachineRole() {
			o.Credentials = noCredentials{}
		}
		if o.Region == "" {
			o.Region = anyRegion
		}
		// Files have their own digests. With the store's validation, a damaged object would be reported as unreadable.
		o.ResponseChecksumValidation = aws.ResponseChecksumValidationWhenRequired
	})
	if b.objects, err = s3blob.OpenBucket(ctx, b.client, b.name, &opener.Options); err != nil {
		return nil, fmt.Errorf("%s: %w", b, err)
	}
	if b.prefix != "" {
		b.objects = blob.PrefixedBucket(b.objects, b.prefix)
	}
	return b, nil
}

// asksForMachineRole reports whether credentials may be asked of the metadata service of Amazon's machines. Elsewhere the
// question goes to a link-local address that no store has to do with, and costs seconds.
func asksForMachineRole() bool {
	return strings.EqualFold(os.Getenv("AWS_EC2_METADATA_DISABLED"), "false")
}

// noCredentials is returned if the environment and ~/.aws have no credentials.
type noCredentials struct{}

func (noCredentials) Retrieve(context.Context) (aws.Credentials, error) {
	return aws.Credentials{}, errNoCredentials
}

var errNoCredentials = errors.New("expected credentials in the environment or in ~/.aws, found none")

// String is the URL without its parameters.
func (b *bucket) String() string { return strings.TrimSuffix(b.url(""), "/") }

// url returns the URL of an object.
func (b *bucket) url(key string) string { return s3Scheme + "://" + b.name + "/" + b.prefix + key }

// Close implements [checkpoint.Place].
func (b *bucket) Close() error {
	err := b.objects.Close()
	b.http.CloseIdleConnections()
	return err
}

// under returns the prefix of the objects of a directory.
func under(dir string) string {
	if dir == "" {
		return ""
	}
	return dir + "/"
}

// each calls visit for what lies below dir, or right below it, where a dir ends with a slash.
func (b *bucket) each(ctx context.Context, dir, delimiter string, visit func(key string) error) error {
	list := b.objects.List(&blob.ListOptions{Prefix: under(dir), Delimiter: delimiter})
	for {
		o, err := list.Next(ctx)
		//guard:cut-list-fails
		if err == io.EOF { //nolint:errorlint // a connection that was cut is one too, wrapped: the list would seem to end there
			return nil
		}
		if err != nil {
			return b.failed("list", under(dir), err)
		}
		if err := visit(o.Key); err != nil {
			return err
		}
	}
}

// List implements [checkpoint.Place].
func (b *bucket) List(ctx context.Context, dir string) (names []string, err error) {
	err = b.each(ctx, dir, "/", func(key string) error {
		names = append(names, path.Base(key))
		return nil
	})
	return names, err
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
	if err := b.objects.Delete(ctx, name); err != nil {
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
	if err := b.each(ctx, dir, "", func(key string) error {
		if key == claim {
			return nil
		}
		return b.Remove(ctx, key)
	}); err != nil {
		return err
	}
	return b.Remove(ctx, claim)
}

// dropUploads aborts unfinished uploads below dir, which killed processes leave. If the store does not list them, they stay until
// its own rules remove them.
func (b *bucket) dropUploads(ctx context.Context, dir string) error {
	pages := s3.NewListMultipartUploadsPaginator(b.client, &s3.ListMultipartUploadsInput{Bucket: &b.name, Prefix: aws.String(b.prefix + under(dir))})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if _, refused := errors.AsType[smithy.APIError](err); refused {
			return nil
		}
		if err != nil {
			return b.failed("list uploads", under(dir), err)
		}
		for _, u := range page.Uploads {
			if _, err := b.client.AbortMultipartUpload(ctx, &s3.AbortMultipartUploadInput{Bucket: &b.name, Key: u.Key, UploadId: u.UploadId}); err != nil {
				return b.failed("end the upload", strings.TrimPrefix(aws.ToString(u.Key), b.prefix), err)
			}
		}
	}
	return nil
}
