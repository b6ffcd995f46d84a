package taskqueue

// A stop is about one dispatch of a task, and follows from the committed state alone: the task was dispatched again, or it is counted. Both
// are final, so a stop can be repeated, can arrive late, and never concerns another dispatch. The state stores no stops. A trainer lists
// its tasks in each heartbeat, and any leader answers with the ones to stop.

// stops returns the dispatches to stop among the dispatches that a trainer reports.
func (q *Queue) stops(t *trainer, has []Token) (list []Token) {
	for _, tok := range has {
		if q.superseded(t, tok) {
			list = append(list, tok)
		}
	}
	return list
}

// superseded reports whether the result of a dispatch is useless. A task that only timed out may still be finished by its former holder.
func (q *Queue) superseded(t *trainer, tok Token) bool {
	_, e, status := q.locate(tok)
	switch {
	case status == AlreadyCounted:
		return true
	case status != Counted || e == nil: // it names no dispatch, or the task is set aside
		return false
	}
	for _, h := range e.holders[:e.holderCount] {
		if h.trainer == t && h.attempt == tok.Attempt {
			return false
		}
	}
	//guard:stop-after-next-dispatch
	return tok.Attempt+1 < e.next
}
