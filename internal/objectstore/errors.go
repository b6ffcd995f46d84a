package objectstore

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/http"
	"slices"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"
)

// Statuses with a meaning for reads.
const (
	statusBadRange     = http.StatusRequestedRangeNotSatisfiable
	statusOtherVersion = http.StatusPreconditionFailed
)

// statusOf returns the status of the store's answer, 0 if there was none.
func statusOf(err error) int {
	if answer, ok := errors.AsType[*smithyhttp.ResponseError](err); ok {
		return answer.HTTPStatusCode()
	}
	if answer, ok := errors.AsType[*azcore.ResponseError](err); ok {
		return answer.StatusCode
	}
	if answer, ok := errors.AsType[*gcsError](err); ok {
		return answer.status
	}
	return 0
}

// isFinal reports whether a repeated request would have the same answer.
func isFinal(err error) bool {
	switch status := statusOf(err); {
	case errors.Is(err, ErrReplaced), errors.Is(err, errNoCredentials), errors.Is(err, errRedirects), errors.Is(err, context.Canceled):
		return true
	case status == http.StatusRequestTimeout, status == http.StatusTooManyRequests:
		return false
	default:
		return status >= http.StatusBadRequest && status < http.StatusInternalServerError
	}
}

// notFoundError is the error of an object that does not exist.
type notFoundError struct{ at string }

func (e *notFoundError) Error() string { return e.at + ": expected an object, found none" }
func (e *notFoundError) Unwrap() error { return fs.ErrNotExist }

// advice is what to do about the answers of stores, by their code.
var advice = []struct {
	codes []string
	do    string
}{
	{[]string{"NoSuchBucket", "ContainerNotFound"},
		"there is no such bucket: create it, or correct the URL"},
	{[]string{"InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "TokenRefreshRequired", "InvalidClientTokenId", "AuthenticationFailed"},
		"the store does not know these credentials: correct the environment (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AZURE_STORAGE_KEY, GOOGLE_APPLICATION_CREDENTIALS), ~/.aws or the machine's role"},
	{[]string{"AccessDenied", "Forbidden", "AllAccessDisabled", "AccountProblem", "AuthorizationFailure", "AuthorizationPermissionMismatch", "InsufficientAccountPermissions", "PublicAccessNotPermitted", "NoAuthenticationInformation"},
		"these credentials may not do that: they need s3:ListBucket on the bucket, and s3:GetObject, s3:PutObject, s3:DeleteObject and s3:AbortMultipartUpload on the objects below the prefix; or Storage Blob Data Contributor (azblob), Storage Object Admin (gs). To read, s3:GetObject and s3:ListBucket, or a reader role, are enough"},
	{[]string{"PermanentRedirect", "TemporaryRedirect", "MovedPermanently", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"},
		"the bucket is in another region: add region=NAME to the URL, or set AWS_REGION"},
	{[]string{"NotImplemented", "MethodNotAllowed", "InvalidRequest", "XAmzContentSHA256Mismatch"},
		"the store does not know a request of S3's: it needs conditional writes (If-None-Match); for want of checksums add request_checksum_calculation=when_required to the URL"},
	{[]string{otherService},
		"another service answers at the address of the store: correct the URL"},
	{[]string{"RequestTimeTooSkewed"},
		"the clock of this machine is wrong: correct it"},
}

// IsNotFound reports whether the store has answered that there is no such object. Other 404 errors can come from another service at that
// address.
func IsNotFound(err error) bool {
	switch codeOf(err) {
	case "NoSuchKey", "NotFound", "BlobNotFound":
		return true
	}
	return false
}

// otherService is the code of an answer that is not of the store.
const otherService = "OtherService"

// codeOf returns the store's code of an error, "" without one. gs has statuses instead of codes.
func codeOf(err error) string {
	if errors.Is(err, errOtherService) {
		return otherService
	}
	if api, answered := errors.AsType[smithy.APIError](err); answered {
		return api.ErrorCode()
	}
	if answer, answered := errors.AsType[*azcore.ResponseError](err); answered {
		return answer.ErrorCode
	}
	if answer, answered := errors.AsType[*gcsError](err); answered {
		switch {
		case answer.status == http.StatusNotFound && strings.Contains(answer.text, "bucket does not exist"):
			return "NoSuchBucket"
		//guard:gcs-object-missing
		case answer.status == http.StatusNotFound && answer.reason == "notFound":
			return "NotFound"
		case answer.status == http.StatusNotFound:
			return otherService
		case answer.status == http.StatusUnauthorized:
			return "InvalidToken"
		case answer.status == http.StatusForbidden:
			return "AccessDenied"
		}
	}
	return ""
}

// Explain returns the action that repairs the cause of an error of the store, and the error without the internal terms of the SDK.
func Explain(err error) (action string, cause error) {
	code := codeOf(err)
	if errors.Is(err, errNoCredentials) {
		err = errNoCredentials
	}
	return whatToDo(code, err), err
}

func whatToDo(code string, err error) string {
	for _, a := range advice {
		if slices.Contains(a.codes, code) {
			return a.do
		}
	}
	if errors.Is(err, errNoCredentials) || strings.Contains(err.Error(), "get credentials") {
		return "found no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, AZURE_STORAGE_KEY or GOOGLE_APPLICATION_CREDENTIALS, or AWS_EC2_METADATA_DISABLED=false for the role of a machine of Amazon"
	}
	if errors.Is(err, context.Canceled) {
		return "it was given up"
	}
	if _, network := errors.AsType[net.Error](err); network || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return "the store does not answer: is its address right, and does it run?"
	}
	return "the store refused"
}
