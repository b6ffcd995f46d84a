package ledger

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Config sets when and where the ledger of a job is sealed, and its retention. The zero value of a
// field means its default.
type Config struct {
	Job   string
	Dir   string // directory for the directories of jobs; "": in etcd
	Every uint64 // commits to a sealed file; default 10,000
	Bytes int    // of events to a sealed file, before compression; default 1 MiB
	Keep  Keep   // default KeepDirectory or KeepEtcd
}

// Keep limits the sealed ledger. Files beyond the limit are removed, the oldest first. The newest
// file is always kept.
type Keep struct {
	Bytes int64         // 0: not bounded
	Age   time.Duration // 0: not bounded
	All   bool
}

// Default retention.
var (
	KeepDirectory = Keep{Bytes: 1 << 30}
	KeepEtcd      = Keep{Bytes: 64 << 20}
)

const (
	defaultEvery = 10_000
	defaultBytes = 1 << 20 // below the size limit of an etcd value
)

func (c Config) withDefaults() Config {
	if c.Job == "" {
		c.Job = "default"
	}
	if c.Every == 0 {
		c.Every = defaultEvery
	}
	if c.Bytes == 0 {
		c.Bytes = defaultBytes
	}
	if c.Keep == (Keep{}) {
		c.Keep = KeepDirectory
		if c.Dir == "" {
			c.Keep = KeepEtcd
		}
	}
	return c
}

// directory returns the directory of the job; "": there is none.
func (c Config) directory() string {
	if c.Dir == "" {
		return ""
	}
	c = c.withDefaults()
	dir := filepath.Join(c.Dir, c.Job)
	if abs, err := filepath.Abs(dir); err == nil {
		return abs
	}
	return dir
}

var byteUnits = []struct {
	suffix string
	bytes  int64
}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40}}

// ParseKeep reads "all", a size such as 64MiB or an age such as 720h. "" is the default.
func ParseKeep(text string) (Keep, error) {
	switch text {
	case "":
		return Keep{}, nil
	case "all":
		return Keep{All: true}, nil
	}
	for _, unit := range byteUnits {
		number, ok := strings.CutSuffix(text, unit.suffix)
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(number, 10, 32)
		if err == nil && n > 0 {
			return Keep{Bytes: n * unit.bytes}, nil
		}
	}
	if age, err := time.ParseDuration(text); err == nil && age > 0 {
		return Keep{Age: age}, nil
	}
	return Keep{}, fmt.Errorf("%q: expected a size such as 64MiB or 10GiB, an age such as 720h, or all", text)
}
