// Package objectstore implements the access to a bucket of an S3-compatible object store: its URL, credentials, connections, and the action
// that repairs an error.
//
// Every request ends: with its context, or when its connection transfers no byte for the stall limit, after which the SDK repeats the request
// twice. [Explain] returns the action for an error.
package objectstore
