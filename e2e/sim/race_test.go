//go:build race

package sim

// The race detector makes a history ten times as long, and there is one goroutine in it.
func init() { fewer, oneOf = 200, 8 }
