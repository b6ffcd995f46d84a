package objectstore

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	azblob "github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"
	"gocloud.dev/blob/azureblob"
)

// AzureScheme is the scheme of the URL of a container of Azure Blob Storage.
const AzureScheme = azureblob.Scheme

// openAzure opens azblob://container with the parameters of [azureblob.URLOpener] and storage_account.
func openAzure(u *url.URL, b *Bucket) error {
	options := azureblob.NewDefaultServiceURLOptions()
	if options.SASToken != "" && u.RawQuery != "" {
		return fmt.Errorf("%s: expected no parameters with AZURE_STORAGE_SAS_TOKEN, which must not reach another address: set AZURE_STORAGE_DOMAIN and AZURE_STORAGE_PROTOCOL", b)
	}
	opener := &azureblob.URLOpener{ServiceURLOptions: *options, MakeClient: func(service azureblob.ServiceURL, name azureblob.ContainerName) (*container.Client, error) {
		account := options.AccountName
		if given := u.Query().Get("storage_account"); given != "" {
			account = given
		}
		return newAzureClient(string(service), string(name), account, b.http)
	}}
	var err error
	if b.Objects, err = opener.OpenBucketURL(context.Background(), u); err != nil {
		return fmt.Errorf("%s: %w", b, err)
	}
	b.driver = azureDriver
	return nil
}

// newAzureClient chooses the credentials: the key of the account, a SAS token, a connection string, or what azidentity finds.
func newAzureClient(service, name, account string, client *client) (*container.Client, error) {
	options := &container.ClientOptions{ClientOptions: azcore.ClientOptions{Transport: client}}
	address, err := url.JoinPath(service, name)
	if err != nil {
		return nil, err
	}
	connection := os.Getenv("AZURE_STORAGE_CONNECTION_STRING")
	switch {
	case os.Getenv("AZURE_STORAGE_KEY") != "":
		key, err := container.NewSharedKeyCredential(account, os.Getenv("AZURE_STORAGE_KEY"))
		if err != nil {
			return nil, errors.New("AZURE_STORAGE_KEY: expected the base64 text of a key") // err has the key
		}
		return container.NewClientWithSharedKeyCredential(address, key, options)
	case os.Getenv("AZURE_STORAGE_SAS_TOKEN") != "":
		return container.NewClientWithNoCredential(address, options)
	case connection != "":
		c, err := container.NewClientFromConnectionString(connection, name, options)
		if err != nil {
			return nil, errors.New("AZURE_STORAGE_CONNECTION_STRING: expected a connection string with AccountName and AccountKey")
		}
		return c, nil
	}
	if strings.HasPrefix(service, "http://") {
		return nil, errNoCredentials
	}
	found, err := azidentity.NewDefaultAzureCredential(nil)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNoCredentials, err)
	}
	return container.NewClient(address, found, options)
}

var azureDriver = driver{
	pin: func(as func(any) bool, stamp string) error {
		var in *azblob.DownloadStreamOptions
		if !as(&in) {
			return errors.New("no request of azblob")
		}
		if stamp != "" {
			//guard:azure-read-pinned
			in.AccessConditions = &azblob.AccessConditions{ModifiedAccessConditions: &azblob.ModifiedAccessConditions{IfMatch: new(azcore.ETag(stamp))}}
		}
		return nil
	},
	answered: func(as func(any) bool) (stamp, contentRange string) {
		var out azblob.DownloadStreamResponse
		as(&out)
		if out.ETag != nil {
			stamp = string(*out.ETag)
		}
		if out.ContentRange != nil {
			contentRange = *out.ContentRange
		}
		return stamp, contentRange
	},
	once: func(ctx context.Context) context.Context {
		return policy.WithRetryOptions(ctx, policy.RetryOptions{MaxRetries: -1})
	},
}
