package pserver

// OnStep sets what is called after each thing that a checkpoint changes on the disk.
func (s *Server) OnStep(step func(what string)) { s.step = step }

// ChangesBetween is for tests outside.
const ChangesBetween = changesBetween

// RewriteManifest changes the manifest of a checkpoint and its digest.
var RewriteManifest = rewriteManifest
