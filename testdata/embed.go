// Package testdata carries the example datasets into the binary, so that `master run` needs
// no files.
package testdata

import _ "embed"

// Digits is digits.csv.gz. README.md has its source and license.
//
//go:embed digits.csv.gz
var Digits []byte

// Flights is flights.csv.gz. README.md has its source.
//
//go:embed flights.csv.gz
var Flights []byte
