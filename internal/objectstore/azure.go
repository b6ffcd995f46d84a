package objectstore

import (
	"context"
	"errors"
	"fmt"
	"net/http"
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
		if given := u.Query().Get("storage_account"); given != "" {
			options.AccountName = given
		}
		usual, err := azureblob.NewServiceURL(options)
		if err != nil {
			return nil, err
		}
		return newAzureClient(string(service), string(name), options.AccountName, usual == service && isAccount(options.AccountName), b.http)
	}}
	var err error
	if b.Objects, err = opener.OpenBucketURL(context.Background(), u); err != nil {
		return fmt.Errorf("%s: %w", b, err)
	}
	b.driver = azureDriver
	return nil
}

// isAccount reports whether name can be an account of Azure. Other names could change the host of a URL.
func isAccount(name string) bool {
	return name != "" && strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789") == ""
}

// newAzureClient chooses the credentials: the key of the account, a SAS token, a connection string, or what azidentity finds. isUsual is
// true if the parameters of the URL did not choose the host.
func newAzureClient(service, name, account string, isUsual bool, client *client) (*container.Client, error) {
	options := &container.ClientOptions{ClientOptions: azcore.ClientOptions{Transport: azureTransport{client}}}
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
	//guard:azure-token-not-sent-elsewhere
	if !isUsual {
		return nil, fmt.Errorf("expected the address of the environment for a token of Microsoft Entra ID, found %s: set AZURE_STORAGE_DOMAIN instead of the parameters of the URL, or set AZURE_STORAGE_KEY", service)
	}
	found, err := azidentity.NewDefaultAzureCredential(nil)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNoCredentials, err)
	}
	return container.NewClient(address, found, options)
}

// azureTransport refuses answers without the headers that the driver of gocloud.dev requires: it would panic.
type azureTransport struct{ *client }

// Do implements the transport of azcore.
func (t azureTransport) Do(r *http.Request) (*http.Response, error) {
	answer, err := t.client.Do(r)
	if err != nil || answer.StatusCode >= http.StatusMultipleChoices {
		return answer, err
	}
	required := []string{"X-Ms-Version"}
	isList := r.URL.Query().Has("comp")
	switch {
	case r.Method == http.MethodHead:
		required = append(required, "Last-Modified", "X-Ms-Creation-Time")
	case r.Method == http.MethodGet && !isList:
		required = append(required, "Last-Modified")
	}
	for _, name := range required {
		//guard:azure-answer-headers
		if answer.Header.Get(name) == "" {
			return nil, errors.Join(fmt.Errorf("%w: expected the header %s, found none", errOtherService, name), answer.Body.Close())
		}
	}
	return answer, nil
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
