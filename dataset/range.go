package dataset

import (
	"errors"
	"fmt"
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"trainmaster/recordio"
)

// Range is a dataset without files: numbered records, which the reader of a trainer resolves, for example rows of a database. Its path is
// range://NAME?records=N&per-task=K.
type Range struct {
	Name    string
	Records int64 // numbers of the records: 0 to Records-1
	PerTask int64 // records in a task; the last task may have fewer
}

// MaxRangeTasks is the maximum number of tasks of a range.
const MaxRangeTasks = 1_000_000

const (
	rangePrefix  = "range://"
	maxRangeName = 63
)

// Errors of ranges.
var (
	ErrBadRange = errors.New("invalid range")
	// ErrNoFile is returned for the records of a range.
	ErrNoFile = errors.New("a range has no file")
)

// IsRange reports whether a path names a range.
func IsRange(path string) bool { return strings.HasPrefix(path, rangePrefix) }

// ParseRange parses the path of a range. It has each parameter once, and no others.
func ParseRange(path string) (r Range, err error) {
	bad := func(format string, args ...any) (Range, error) {
		return Range{}, fmt.Errorf("%s: %w: %s", recordio.DisplayName(shorten(path)), ErrBadRange, fmt.Sprintf(format, args...))
	}
	name, query, _ := strings.Cut(strings.TrimPrefix(path, rangePrefix), "?")
	r.Name = name
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_."
	if !IsRange(path) || name == "" || len(name) > maxRangeName || strings.Trim(name, letters) != "" {
		return bad(`name: expected range://NAME?records=N&per-task=K with a name of 1 to %d letters, digits, "-", "_" and ".", found %q`, maxRangeName, shorten(name))
	}
	parameters, err := url.ParseQuery(query)
	if err != nil {
		return bad("expected ?records=N&per-task=K after the name, found %q", shorten(query))
	}
	for key := range parameters {
		if key != "records" && key != "per-task" {
			return bad("expected the parameters records and per-task, found %q", shorten(key))
		}
	}
	for _, p := range []struct {
		key   string
		value *int64
		most  int64
	}{{"records", &r.Records, MaxRangeTasks * math.MaxUint32}, {"per-task", &r.PerTask, math.MaxUint32}} {
		values := parameters[p.key]
		if len(values) != 1 {
			return bad("%s: expected the parameter once, found it %d times", p.key, len(values))
		}
		//guard:range-numbers-positive
		if *p.value, err = strconv.ParseInt(values[0], 10, 64); err != nil || *p.value < 1 || *p.value > p.most {
			return bad("%s: expected a number from 1 to %d, found %q", p.key, p.most, shorten(values[0]))
		}
	}
	//guard:range-tasks-limit
	if r.tasks() > MaxRangeTasks {
		return bad("per-task: expected at least %d, so that there are at most %d tasks, found %d", (r.Records-1)/MaxRangeTasks+1, MaxRangeTasks, r.PerTask)
	}
	return r, nil
}

// shorten bounds a text in an error.
func shorten(text string) string {
	const most = 200
	if len(text) > most {
		return strings.ToValidUTF8(text[:most], "") + "..."
	}
	return text
}

func (r Range) tasks() int64 { return (r.Records-1)/r.PerTask + 1 }

// String returns the path of the range. Equal ranges have equal paths.
func (r Range) String() string {
	return fmt.Sprintf("%s%s?records=%d&per-task=%d", rangePrefix, r.Name, r.Records, r.PerTask)
}

// index has a chunk for each task.
func (r Range) index() []recordio.Index {
	index := make([]recordio.Index, r.tasks())
	for i := range index {
		first := int64(i) * r.PerTask
		index[i] = recordio.Index{Offset: first, Records: uint32(min(r.PerTask, r.Records-first)), Layout: recordio.Range}
	}
	return index
}

// rangeOf returns the range that names stand for. It returns false if all names are paths and globs.
func rangeOf(names []string) (r Range, found bool, err error) {
	at := slices.IndexFunc(names, IsRange)
	if at < 0 {
		return r, false, nil
	}
	r, err = ParseRange(names[at])
	//guard:range-is-a-whole-dataset
	if err == nil && slices.ContainsFunc(names, func(name string) bool { return name != names[at] }) {
		err = fmt.Errorf("%s: %w: expected it as the only path of its dataset, found %d paths: give it a dataset of its own", r, ErrBadRange, len(names))
	}
	return r, true, err
}

// listing is the list of the range as a dataset: one entry, whose size is the number of records.
func (r Range) listing() Listing {
	files := []File{{Path: r.String(), Size: r.Records, ModTime: time.Unix(0, 0)}}
	return Listing{Files: files, Digest: Digest(files)}
}
