package objectstore

import (
	"context"
	"net"
	"net/http"
	"time"

	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
)

const dialLimit = 10 * time.Second

// newHTTPClient returns the client of the SDK, except that a connection that transfers no byte for stallLimit fails.
func newHTTPClient(stallLimit time.Duration) *http.Client {
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

// movingConn extends its deadline with every read and write: a pending read does not fail while the request is still sent.
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
