package session

import (
	"slices"

	"trainmaster/master/netrpc/wire"
)

// Parts splits a request into requests with at most one finish each, as the gRPC messages have it. They are sent, and repeated, in
// their order. The last part asks for the task. A request without a finish that asks for no task has no part. A request of a trainer with a window has one part, with
// all finishes.
func Parts(r *wire.NextRequest) []*wire.NextRequest {
	if len(r.Finished) == 0 && !r.Want {
		return nil
	}
	if len(r.Finished) <= 1 || r.Most > 0 {
		return []*wire.NextRequest{r}
	}
	parts := make([]*wire.NextRequest, len(r.Finished))
	for i := range r.Finished {
		part := *r
		part.Finished, part.Want = r.Finished[i:i+1], r.Want && i == len(r.Finished)-1
		part.Held = slices.Clone(r.Held)
		for _, later := range r.Finished[i+1:] {
			// The master dispatches a task again if a later request does not list it.
			//guard:held-until-reported
			part.Held = append(part.Held, later.Token)
		}
		parts[i] = &part
	}
	return parts
}
