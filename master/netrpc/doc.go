// Package netrpc is the net/rpc face of a master: it turns messages into calls of
// package master and its errors into words. Package wire has the messages.
//
// Every connection has a service of its own, which knows what that connection holds: a
// client that did not join is its connection. What it says is finished counts only if this
// connection holds it, and when it closes its tasks go back at once. The first message of a
// connection must be an HTTP CONNECT to /_goRPC_, as rpc.DialHTTP sends.
package netrpc
