package main

import (
	"context"

	"trainmaster/master"
	"trainmaster/master/component"
	"trainmaster/master/pscontrol"
	"trainmaster/master/trainerclient"
	"trainmaster/master/trainercontrol"
)

// components sets the components that the flags select, in addition to the components of every master. servers is the control of
// parameter servers, without its settings. desire stores the number of servers, which the control reads.
// leader returns the master that runs them.
func (s *daemonSettings) components(config *master.Config, servers pscontrol.Config, desire func(context.Context) error, leader func() *master.Master) {
	config.Streams = &trainercontrol.Streams{}
	control := trainercontrol.Config{Trainers: trainerclient.Client{DataProxy: s.proxyAddr()}, Streams: config.Streams, Log: config.Log}
	config.Components = []component.Component{desiredServers{desire}, trainercontrol.New(control)}
	if config.Ring != nil {
		config.Components = append(config.Components, config.Ring)
	}
	if config.Pods != nil {
		config.Components = append(config.Components, config.Pods)
		if s.pods.annotate {
			s.progress = s.publisher(config)
			config.Components = append(config.Components, s.progress)
		}
	}
	if s.ps > 0 && s.parts.tasks {
		s.control(config, servers)
	}
	if len(s.evaluation.data) > 0 {
		evaluates := s.evaluation.component(config, leader, config.Log, s.metrics)
		config.Components = append(config.Components, evaluates)
		config.Evaluate = evaluates.Evaluate
		config.ComponentDatasets = []master.Dataset{s.evaluation.dataset()}
	}
}

// control adds the control of parameter servers.
func (s *daemonSettings) control(config *master.Config, servers pscontrol.Config) {
	servers.Store, servers.Log = config.Store, config.Log
	if s.pods.need && s.ps > 0 {
		servers.Start = s.pods.missingServers()
	}
	servers.Sync, servers.Cuts, servers.Backups = config.Sync, config.Queue.Cuts, config.Backups
	config.Servers = pscontrol.New(servers)
	config.Components = append(config.Components, config.Servers.Components()...)
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
