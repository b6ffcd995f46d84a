//go:build race

package persist

// The race detector makes a history ten times as long, and there is one goroutine in it.
func init() { *onceHistories = 6 }
