package objectstore

import (
	"context"
	"fmt"
	"net/http"
	"sync"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/google"
)

// lazyToken looks for credentials with the first request: the search can ask the metadata service of a machine.
type lazyToken struct {
	mu     sync.Mutex
	source oauth2.TokenSource // guarded by mu; nil: not found yet
}

// token returns a valid token. Requests for tokens use client.
func (l *lazyToken) token(ctx context.Context, client *http.Client) (*oauth2.Token, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.source == nil {
		ctx := context.WithValue(context.WithoutCancel(ctx), oauth2.HTTPClient, client)
		source, err := google.DefaultTokenSource(ctx, gcsScope)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errNoCredentials, err)
		}
		l.source = source
	}
	token, err := l.source.Token()
	if err != nil {
		return nil, fmt.Errorf("get credentials: %w", err)
	}
	return token, nil
}
