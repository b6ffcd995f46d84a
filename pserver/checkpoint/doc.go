// Package checkpoint is what parameter servers leave on a disk or in an object
// store, for them and for tools: it needs no server. docs/formats/parameter-server-checkpoint.md has
// the format.
//
// A checkpoint is a folder of safetensors files and a manifest that names them
// with their digests. Every file appears under its name when it is whole and
// synced, the manifest last: a process that is killed anywhere in between leaves
// a folder without one, which nobody takes for a checkpoint. What is opened was
// verified, byte by byte. A place that cannot be reached is [ErrUnavailable], and
// never taken for one where nothing lies, or something damaged.
package checkpoint
