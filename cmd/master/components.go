package main

import (
	"context"

	"trainmaster/master/component"
)

// components returns the components that the flags select, in addition to the components of every master.
func (s *daemonSettings) components(desire func(context.Context) error) []component.Component {
	if s.ps == 0 {
		return nil
	}
	return []component.Component{desiredServers{desire}}
}

// desiredServers is the component that writes the number of parameter servers when a term begins.
type desiredServers struct {
	desire func(context.Context) error
}

// Name implements [component.Component].
func (desiredServers) Name() string { return "number of parameter servers" }

// Init implements [component.Component].
func (desiredServers) Init(context.Context) error { return nil }

// Prepare writes the number, or compares it with the stored one.
func (d desiredServers) Prepare(ctx context.Context, _ component.Term) error { return d.desire(ctx) }

// Run waits for the end of the term.
func (desiredServers) Run(ctx context.Context, _ component.Term) error {
	<-ctx.Done()
	return context.Cause(ctx)
}
