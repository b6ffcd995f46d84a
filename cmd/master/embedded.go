package main

// orFailed returns what run does, or the failure of the embedded etcd if that comes first. After such a failure nothing can be
// stored or confirmed any more, and the process ends as if it were killed: run is not waited for.
func orFailed(run func() error, failed <-chan error) error {
	ended := make(chan error, 1)
	go func() { ended <- run() }()
	select {
	case err := <-ended:
		return err
	case err := <-failed:
		return err
	}
}
