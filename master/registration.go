package master

import (
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
)

// Registration is how far the registration of a dataset is: Done of Total in its current
// step. The zero Registration is none.
type Registration struct {
	Step        string // current step, in the form of a log line
	Done, Total int
}

// The steps of a registration.
const (
	listing  = "looking at the files of the dataset"
	indexing = "indexing the dataset"
	storing  = "storing the task table"
)

// registrationEvery is how often a long registration logs how far it is.
const registrationEvery = 2 * time.Second

// registration follows one registration after the other.
type registration struct {
	at atomic.Pointer[Registration]
}

// step begins a step and returns its progress callback, for one goroutine at a time.
func (r *registration) step(log *logrus.Entry, step string) func(done, total int) {
	said := time.Now()
	r.at.Store(&Registration{Step: step})
	return func(done, total int) {
		r.at.Store(&Registration{step, done, total})
		if now := time.Now(); now.Sub(said) >= registrationEvery {
			said = now
			log.WithFields(logrus.Fields{"done": done, "of": total}).Info(step)
		}
	}
}

func (r *registration) end() { r.at.Store(nil) }

func (r *registration) status() Registration {
	if at := r.at.Load(); at != nil {
		return *at
	}
	return Registration{}
}
