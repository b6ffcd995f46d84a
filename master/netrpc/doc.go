// Package netrpc implements the net/rpc API of a master. It translates messages into calls of package master, and
// errors into texts. Package wire defines the messages.
//
// Every connection has its own service, which records the tasks that the connection holds. A client that did not join
// is identified by its connection. Its finished tasks count only if the connection holds them. When the connection
// closes, its tasks are returned immediately. The first message of a connection must be an HTTP CONNECT to /_goRPC_, as
// rpc.DialHTTP sends.
package netrpc
