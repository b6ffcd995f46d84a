package trainer

import (
	"fmt"

	"trainmaster/dataset"
	"trainmaster/recordio"
	"trainmaster/taskqueue"
)

// Range is a run of records of a [dataset.Range]: the records First to First+Records-1. Name names the source of the records.
type Range struct {
	Name           string
	First, Records int64
}

// Ranges returns the record numbers of a task of a range, from Base on. A task with records in files is an error.
func (c *Client) Ranges(task *taskqueue.Task) ([]Range, error) {
	skip := c.Base(task)
	var ranges []Range
	for _, chunk := range task.Chunks {
		if chunk.Index.Layout != recordio.Range {
			return nil, fmt.Errorf("task %d: %s: expected a range, found a file: use Records", task.Index, recordio.DisplayName(chunk.Path))
		}
		r, err := dataset.ParseRange(chunk.Path)
		if err != nil {
			return nil, fmt.Errorf("task %d: %w", task.Index, err)
		}
		skipped := min(skip, int64(chunk.Index.Records))
		skip -= skipped
		if n := int64(chunk.Index.Records) - skipped; n > 0 {
			//guard:range-begins-at-base
			ranges = append(ranges, Range{Name: r.Name, First: chunk.Index.Offset + skipped, Records: n})
		}
	}
	return ranges, nil
}
