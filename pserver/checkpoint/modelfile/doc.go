// Package modelfile implements models as files: it opens checkpoint sets by directory, file or URL, reports their contents, exports them to
// safetensors files, and compares models.
//
// All digests are verified while a set is read. An exported file appears under its name only when it is complete. If a set is damaged, the
// error names the file. If the store does not answer, the error is [checkpoint.ErrUnavailable].
package modelfile
