//go:build race

package pserver_test

// The race detector makes the start of a process several times as slow. make test also kills after each step, without it.
func init() { killStride = 24 }
