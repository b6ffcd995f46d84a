package objectstore

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials/ec2rolecreds"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go/logging"
	"gocloud.dev/blob"
	"gocloud.dev/blob/s3blob"
)

// Scheme is the scheme of the URL of a bucket.
const Scheme = s3blob.Scheme

// schemes are the schemes of Parse.
var schemes = []string{Scheme, GCSScheme, AzureScheme}

// anyRegion is the region for stores without regions, which ignore it.
const anyRegion = "us-east-1"

// Bucket is the objects with a prefix in a bucket.
type Bucket struct {
	Objects *blob.Bucket // names are relative to the prefix
	Client  *s3.Client   // of s3://, for requests that Objects does not have, such as the list of unfinished uploads; else nil
	Name    string       // of the bucket
	Prefix  string       // "" or with a slash at its end

	scheme   string
	http     *client
	endpoint string // as the URL has it; "": Amazon's
	driver   driver
}

// driver is what the drivers of gocloud.dev do in different ways.
type driver struct {
	// pin makes a read fail if the object has another stamp, and makes it a single request.
	pin func(as func(any) bool, stamp string) error
	// once returns the context of a request that is not repeated, if pin cannot do that.
	once func(context.Context) context.Context
	// answered returns the stamp of the object that is read, and the Content-Range.
	answered func(as func(any) bool) (stamp, contentRange string)
}

// Open opens the bucket of a URL, scheme://bucket/prefix with the parameters of its store. They are defined by [s3blob.URLOpener],
// [azureblob.URLOpener] and openGCS. It sends no request. A connection that transfers no
// byte for stallLimit fails.
func Open(u *url.URL, stallLimit time.Duration) (*Bucket, error) {
	b := &Bucket{Name: u.Host, scheme: u.Scheme, endpoint: u.Query().Get("endpoint"), http: newClient(stallLimit)}
	if prefix := strings.Trim(path.Clean("/"+u.Path), "/"); prefix != "" {
		b.Prefix = prefix + "/"
	}
	if e, err := url.Parse(b.endpoint); err != nil || e.User != nil || b.endpoint != "" && e.Host == "" {
		return nil, fmt.Errorf("%s: expected endpoint to be a URL without credentials, such as http://127.0.0.1:9000", b)
	}
	var err error
	switch u.Scheme {
	case GCSScheme:
		err = openGCS(u, b)
	case AzureScheme:
		b.endpoint = u.Query().Get("domain")
		err = openAzure(u, b)
	default:
		err = openS3(u, b)
	}
	if err != nil {
		return nil, err
	}
	if b.Prefix != "" {
		b.Objects = blob.PrefixedBucket(b.Objects, b.Prefix)
	}
	return b, nil
}

// openS3 opens s3://bucket with the client of the SDK.
func openS3(u *url.URL, b *Bucket) error {
	ctx := context.Background() // only files and the environment are read
	opener := &s3blob.URLOpener{}
	of, err := opener.OpenBucketURL(ctx, u)
	if err != nil {
		return fmt.Errorf("%s: %w", b, err)
	}
	defer of.Close()
	var client *s3.Client
	if !of.As(&client) {
		return fmt.Errorf("%s: %T is no client of S3", b, of)
	}
	options := client.Options()
	if options.Region == "" && b.endpoint == "" {
		return fmt.Errorf("%s: expected the region of the bucket: add region=NAME to the URL, or set AWS_REGION", b)
	}
	b.Client = s3.New(options, func(o *s3.Options) {
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
	b.driver = s3Driver
	if b.Objects, err = s3blob.OpenBucket(ctx, b.Client, b.Name, &opener.Options); err != nil {
		return fmt.Errorf("%s: %w", b, err)
	}
	return nil
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
func (b *Bucket) String() string { return strings.TrimSuffix(b.URL(""), "/") }

// URL returns the URL of an object.
func (b *Bucket) URL(key string) string { return b.scheme + "://" + b.Name + "/" + b.Prefix + key }

// At returns the URL of an object for a message, with the endpoint of the store if it is not Amazon's.
func (b *Bucket) At(key string) string {
	if b.endpoint == "" {
		return b.URL(key)
	}
	return b.URL(key) + " at " + b.endpoint
}

// Close closes all connections.
func (b *Bucket) Close() error {
	err := b.Objects.Close()
	b.http.CloseIdleConnections()
	return err
}

// OpenStore opens the bucket of a Location.
func OpenStore(store string, stallLimit time.Duration) (*Bucket, error) {
	u, err := parseBucket(store)
	if err != nil {
		return nil, err
	}
	return Open(u, stallLimit)
}
