package ledger

import (
	"testing"
	"time"
)

// A clock that steps forward by a day, once, makes no file too old, however short the age to keep is.
func TestStepOfAClockAloneMakesNoFileTooOld(t *testing.T) {
	const minute, day = int64(time.Minute / time.Millisecond), 24 * int64(time.Hour/time.Millisecond)
	for _, age := range []time.Duration{10 * time.Minute, time.Hour, 7 * time.Hour, 9 * time.Hour, 30 * 24 * time.Hour} {
		w := &work{Config: Config{Keep: Keep{Age: age}}}
		for _, at := range []int64{day, day + minute, day + minute + day, day + 2*minute + day} {
			w.files = append(w.files, sealedFile{Header: Header{Newest: at}})
		}
		if n := w.tooOld(); n != 0 {
			t.Errorf("%d files of the last three minutes are too old for an age of %v", n, age)
		}
	}
}
