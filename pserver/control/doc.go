// Package control is the gRPC service of a parameter server. It converts requests to calls of the core (package shard) and of the
// checkpoints (package persist), and errors to status codes. A migration reads blocks and slots of another server through it.
package control
