// Package dataport serves the data connections of a parameter server: frames of package wire over TCP, over a unix domain socket, and
// with payloads in memory that a trainer of the same machine shares.
//
// A connection reads a whole frame, checks its checksum, its epochs and its values, makes one call of the core (package shard), and
// sends the reply. Buffers are pooled and bounded: a frame allocates nothing, and a connection waits if all buffers are in use.
package dataport
