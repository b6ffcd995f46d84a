package shard

import (
	"errors"
	"fmt"
	"strings"
)

// ErrOtherJob is the error of a caller of another job, whose address of this server is of an earlier server.
var ErrOtherJob = errors.New("parameter server of another job")

// Job returns the id of the job, in hexadecimal digits; "": not known yet.
func (s *Shard) Job() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.JobID
}

// CheckJob refuses a caller of another job. id is the id of its job or the beginning of it, in hexadecimal digits; "": not stated.
func (s *Shard) CheckJob(id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	//guard:other-job-refused
	if s.JobID == "" || strings.HasPrefix(s.JobID, id) {
		return nil
	}
	return fmt.Errorf("%w: shard %d is of job %s, the caller is of job %s: look the addresses up again", ErrOtherJob, s.index, s.JobID, id)
}
