// Package checkpoint implements the files of parameter servers on a disk or in an object store, for servers and tools.
// docs/formats/parameter-server-checkpoint.md describes the format.
//
// A checkpoint is a directory of safetensors files and a manifest with their digests. A file gets its name when it is complete and
// synced, the manifest last. A killed process leaves a directory without manifest, which is not a checkpoint. Open verifies all
// bytes.
//
// If a place is unreachable, the error is [ErrUnavailable]. It is never reported as an absent or damaged file.
package checkpoint
