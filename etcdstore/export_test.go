package etcdstore

// SetUncompacted lowers the bound of CheckAutoCompaction. The returned function restores it.
func SetUncompacted(n int64) (restore func()) {
	old := uncompacted
	uncompacted = n
	return func() { uncompacted = old }
}
