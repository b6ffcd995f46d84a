package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Why a store cannot be opened.
var (
	// ErrUnreachable says that no endpoint answered. Trying again may help.
	ErrUnreachable = errors.New("etcd is unreachable")

	// ErrRefused says that etcd answered, and does not let us in.
	ErrRefused = errors.New("etcd refused us")
)

// explain turns the failure of a first contact into what a user can act on.
func (s *Store) explain(ctx context.Context, cfg Config, waited time.Duration, cause error) error {
	user, _ := cfg.credentials()
	where := strings.Join(cfg.Endpoints, ",")
	switch code := codeOf(cause); code {
	case codes.InvalidArgument, codes.FailedPrecondition, codes.Unauthenticated:
		return fmt.Errorf("%w at %s as user %q: %w; check --user and its password, or the client certificate", ErrRefused, where, user, cause)
	case codes.PermissionDenied:
		return fmt.Errorf("%w at %s as user %q: %w; give its role the keys of the job: etcdctl role grant-permission ROLE readwrite --prefix=true '%s/'",
			ErrRefused, where, user, cause, s.prefix)
	case codes.Unimplemented:
		return fmt.Errorf("%w at %s: %w; is that an etcd of version 3.4 or later?", ErrRefused, where, cause)
	}
	var found []string
	advice := "name other --endpoints"
	for _, endpoint := range cfg.Endpoints {
		text, listens := probe(ctx, endpoint, waited.Round(100*time.Millisecond), cause)
		if found = append(found, text); !listens {
			advice = "start etcd there, or name other --endpoints"
		}
	}
	return fmt.Errorf("%w: %s; %s", ErrUnreachable, strings.Join(found, "; "), advice)
}

// probe says how an endpoint behaves on the level below etcd's, and whether a process listens there.
func probe(ctx context.Context, endpoint string, waited time.Duration, cause error) (text string, listens bool) {
	address := endpoint
	if u, err := url.Parse(endpoint); err == nil && u.Host != "" {
		address = u.Host
	}
	dialer := net.Dialer{Timeout: time.Second}
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return fmt.Sprintf("%s: %v", endpoint, err), false
	}
	_ = conn.Close()
	reason := cause.Error()
	secure := strings.HasPrefix(endpoint, "https://")
	switch {
	case secure && (strings.Contains(reason, "handshake failed: EOF") || strings.Contains(reason, "does not look like a TLS handshake") || strings.Contains(reason, "handshake failed: read tcp")):
		return endpoint + ": the server does not speak TLS: use http://", true
	case errors.Is(cause, context.DeadlineExceeded) || codeOf(cause) == codes.DeadlineExceeded || codeOf(cause) == codes.Canceled:
		return fmt.Sprintf("%s: a process listens there but did not answer in %v: is etcd hung, without a quorum or on a very slow disk, or does it need TLS (--cacert)?", endpoint, waited), true
	case strings.Contains(reason, "use of closed network connection"), strings.Contains(reason, "i/o timeout"):
		return fmt.Sprintf("%s: a process listens there but did not answer in %v: is etcd hung?", endpoint, waited), true
	}
	if refusal, ok := status.FromError(cause); ok {
		reason = refusal.Message()
	}
	return fmt.Sprintf("%s: a process listens there, but: %s: is it etcd?", endpoint, reason), true
}

// codeOf is the gRPC code of an error, whether the etcd client has dressed it
// up or not.
func codeOf(err error) codes.Code {
	if dressed, ok := errors.AsType[rpctypes.EtcdError](err); ok {
		return dressed.Code()
	}
	if s, ok := status.FromError(err); ok {
		return s.Code()
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return codes.DeadlineExceeded
	case errors.Is(err, context.Canceled):
		return codes.Canceled
	}
	return codes.Unknown
}

// refused says that trying again with the same credentials is no use.
func refused(err error) bool {
	switch codeOf(err) {
	case codes.PermissionDenied, codes.Unimplemented:
		return true
	}
	return errors.Is(rpctypes.Error(err), rpctypes.ErrAuthFailed) || errors.Is(rpctypes.Error(err), rpctypes.ErrUserEmpty)
}

// staleToken reports whether etcd refused the request only for its authentication token, before it looked at anything else.
// The client has a new token then.
func staleToken(err error) bool {
	dressed := rpctypes.Error(err)
	return errors.Is(dressed, rpctypes.ErrInvalidAuthToken) || errors.Is(dressed, rpctypes.ErrAuthOldRevision)
}
