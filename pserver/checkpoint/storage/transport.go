package storage

import (
	"context"
	"net"
	"net/http"
	"time"

	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
)

const dialLimit = 10 * time.Second

// stallLimit is how long a connection may move no byte while somebody waits for it. A variable for tests.
var stallLimit = 30 * time.Second

// newHTTPClient is the SDK's, but for connections that stand still: they break.
func newHTTPClient() *http.Client {
	transport := awshttp.NewBuildableClient().WithDialerOptions(func(d *net.Dialer) { d.Timeout = dialLimit }).GetTransport()
	dial := transport.DialContext
	transport.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		//guard:stalled-connection-closed
		return &movingConn{conn, stallLimit}, nil
	}
	return &http.Client{Transport: transport, CheckRedirect: func(r *http.Request, _ []*http.Request) error {
		switch r.Response.StatusCode {
		case http.StatusTemporaryRedirect, http.StatusPermanentRedirect: // the others would make another request of it
			return nil
		}
		return http.ErrUseLastResponse
	}}
}

// movingConn has its deadline moved by every read and every write: who waits for an answer while the request is still
// being sent waits on.
type movingConn struct {
	net.Conn
	limit time.Duration
}

func (c *movingConn) Read(p []byte) (int, error) {
	c.SetDeadline(time.Now().Add(c.limit))
	return c.Conn.Read(p)
}

func (c *movingConn) Write(p []byte) (int, error) {
	c.SetDeadline(time.Now().Add(c.limit))
	return c.Conn.Write(p)
}
