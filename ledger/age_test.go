package ledger

import (
	"testing"
	"time"
)

// One forward step of the clock by a day makes no file too old, for any age to keep.
func TestClockStepMakesNoFileTooOld(t *testing.T) {
	const minute, day = int64(time.Minute / time.Millisecond), 24 * int64(time.Hour/time.Millisecond)
	for _, age := range []time.Duration{10 * time.Minute, time.Hour, 7 * time.Hour, 9 * time.Hour, 30 * 24 * time.Hour} {
		w := &work{Config: Config{Keep: Keep{Age: age}}}
		for _, at := range []int64{day, day + minute, day + minute + day, day + 2*minute + day} {
			w.files = append(w.files, sealedFile{Header: Header{Newest: at}})
		}
		if n := w.tooOld(); n != 0 {
			t.Errorf("age %[2]v: expected no file of the last three minutes to be too old, found %[1]d", n, age)
		}
	}
}
