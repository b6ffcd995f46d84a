package rounds

// Leads reports whether the component of a leader runs.
func (r *Rounds) Leads() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.term != nil
}
