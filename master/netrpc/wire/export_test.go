package wire

// Known is the list of errors that clients distinguish.
var Known = known
