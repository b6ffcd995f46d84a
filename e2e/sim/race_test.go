//go:build race

package sim

// The race detector makes a history ten times as slow, and a history has one goroutine. make test also runs all of them without it.
func init() { oneOf = 24 }
