package wire

// Known is the list of errors that clients tell apart.
var Known = known
