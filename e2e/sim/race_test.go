//go:build race

package sim

// The race detector makes a history ten times as slow, and a history has one goroutine. Fewer histories are enough.
func init() { fewer, oneOf = 200, 8 }
