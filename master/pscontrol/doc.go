// Package pscontrol implements the control of the parameter servers of a job by its leader: it broadcasts synchronous steps and ended
// sessions, takes checkpoints and cuts, rolls the job back, and migrates blocks.
//
// The servers are behind the port [Servers], which master/psclient implements by gRPC. [Control] has the components, which run for the
// length of a term. Each message to a server is committed before it is sent and can be repeated, so the next leader continues where a
// leader stopped. An error of a server is logged or shown in the status, and the call is repeated; only the end of the term ends a
// component.
package pscontrol
