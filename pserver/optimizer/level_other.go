//go:build !amd64

package optimizer

// levels are what this processor can do.
var levels = []*level{plainLevel}
