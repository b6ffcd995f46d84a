package component

import (
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/sirupsen/logrus"
)

// ErrPanic is the error of a call that panicked: a defect of the program.
var ErrPanic = errors.New("internal error")

// Contain calls a part of a term. If the call panics, Contain logs the stack and returns [ErrPanic] with the value of the panic. A panic of
// another goroutine that call starts still ends the process.
func Contain(log *logrus.Entry, part string, call func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			log.WithFields(logrus.Fields{"part": part, "panic": r, "stack": string(debug.Stack())}).Error("part of the term panicked")
			//guard:panic-ends-term
			err = fmt.Errorf("%s: %w: panic: %v: the log has the stack", part, ErrPanic, r)
		}
	}()
	return call()
}
