// Package verify implements the checks of a ledger: whether each task was counted exactly once, and which trainers had a record.
//
// [Check] returns the counts of each pass with the errors that it finds, and [Trace] follows the task of a record through all passes.
// A damaged or missing file of the ledger ends the check with an error that names the file.
package verify
