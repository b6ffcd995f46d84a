package psclient_test

import (
	"context"
	"errors"
	"net"
	"testing"

	"google.golang.org/grpc/codes"

	"trainmaster/master/psclient"
)

// F55: a call to a hung server ends when the registry has another address. The next call goes to the new address.
func TestCallToAHungServerEndsWhenItIsReplaced(t *testing.T) {
	hung, err := net.Listen("tcp", "127.0.0.1:0") // without a server
	if err != nil {
		t.Fatal(err)
	}
	defer hung.Close()
	next := serve(t)
	addr := hung.Addr().String()
	serves, replace := context.WithCancelCause(context.Background())
	c := &psclient.Client{
		Addrs: func(context.Context) ([]string, error) { return []string{addr}, nil },
		During: func(parent context.Context, index int, at string) (context.Context, context.CancelFunc) {
			if index != 0 || at != addr {
				t.Errorf("server %d at %s", index, at)
			}
			if at != hung.Addr().String() {
				return context.WithCancel(parent)
			}
			ctx, cancel := context.WithCancelCause(parent)
			stop := context.AfterFunc(serves, func() { cancel(context.Cause(serves)) })
			return ctx, func() { stop(); cancel(nil) }
		},
	}
	t.Cleanup(c.Close)
	ended := make(chan error, 1)
	ctx := within(t)
	go func() {
		err := c.CommitStep(ctx, step)
		ended <- err
	}()
	conn, err := hung.Accept() // the call is under way
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	replace(errors.New("another address"))
	if err := <-ended; codeOf(err) == codes.OK || ctx.Err() != nil {
		t.Fatalf("the call ended with %v, %v", err, ctx.Err())
	}
	addr = next.addr
	if err := c.CommitStep(ctx, step); err != nil {
		t.Error(err)
	}
}
