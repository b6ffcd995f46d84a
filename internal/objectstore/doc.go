// Package objectstore implements the access to buckets of object stores: URLs, credentials, connections, reads of one version of an object
// with read-ahead and a cache, and the action that repairs an error.
//
// # Guarantees
//
//   - [Bucket.ReadRange] and [File] deliver exactly the requested bytes of one version of an object, or an error. The version is named in
//     each request and compared with each answer.
//   - Every request ends: with its context, or when its connection transfers no byte for the stall limit. A failed read continues at the
//     first missing byte, and gives up after 45 s without a byte. Other requests are repeated twice by the SDK.
//   - A list has all objects, or is an error.
//
// [Explain] returns the action for an error.
package objectstore
