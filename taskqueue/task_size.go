package taskqueue

// MaxTaskBytes is the most that a task may take as a message, in bytes. A client that did not join
// sends its task back whole, and messages of more than 4 MiB are refused.
const MaxTaskBytes = 3 << 20

// chunkBytes is the most that a chunk takes in a message besides its path.
const chunkBytes = 64

// LargestTask returns an upper bound of the encoded size of the largest task, in bytes.
func (t *Table) LargestTask() int {
	largest, task, size := 0, -1, 0
	for i := range t.files {
		f := &t.files[i]
		each := len(f.Path) + chunkBytes
		for c := f.first; c < f.last; {
			if now := c / t.chunksPerTask; now != task {
				task, size = now, 0
			}
			n := min((task+1)*t.chunksPerTask, f.last) - c
			size += n*each + len(f.ETag) //guard:task-size-counts-etags
			largest = max(largest, size)
			c += n
		}
	}
	return largest
}

// GroupWithin groups chunks into tasks of at most maxBytes as a message: of as many chunks as given,
// or fewer. The result is that number, and false if even a task of one chunk is larger.
func (t *Table) GroupWithin(chunksPerTask, maxBytes int) (int, bool) {
	n := max(1, min(chunksPerTask, t.Chunks()))
	for t.Group(n); n > 1; t.Group(n) {
		size := t.LargestTask()
		if size <= maxBytes {
			break
		}
		n = max(1, min(n-1, int(int64(n)*int64(maxBytes)/int64(size))))
	}
	return n, t.LargestTask() <= maxBytes
}
