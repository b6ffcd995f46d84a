// Package failpoint implements points at which a test stops, fails or observes production code.
//
// Code with several durable steps has a [Hook] and calls it after each step. A test sets the hook and lets the process
// end there, once for each step. Without a test the hook is nil, and a point does nothing.
package failpoint

import "errors"

// ErrCrash is the result of a hook that simulates the end of the process. The code returns immediately, without cleanup.
var ErrCrash = errors.New("crash")

// Hook is called with the name of the step that is complete. It may kill the process, block, or return an error.
type Hook func(step string) error

// Reach calls the hook and returns its error as the error of the step. It returns nil if the hook is nil.
func (h Hook) Reach(step string) error {
	if h == nil {
		return nil
	}
	return h(step)
}

// Observe calls the hook after a step whose result is final. An error of the hook is a mistake of the test, and Observe panics.
func (h Hook) Observe(step string) {
	if err := h.Reach(step); err != nil {
		panic("failpoint: step " + step + " cannot fail: " + err.Error())
	}
}
