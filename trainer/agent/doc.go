// Package agent implements the agent of a trainer in another language: a second process, which is the client of the job.
//
// The training process starts the agent and sends it requests over a socket pair, in the frames of docs/formats/agent.md. The agent joins the
// job, sends heartbeats, requests tasks ahead, and reports what is finished. It reads chunks, verifies them, and passes them to any process of the trainer
// in sealed memory.
//
// If the training process dies, the agent ends the session immediately. Its tasks are dispatched again without a timeout, and the loss
// is charged to the task in hand alone. If the agent dies, the master returns its tasks after the grace of a lost connection.
package agent
