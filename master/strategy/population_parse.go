package strategy

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"go.yaml.in/yaml/v3"

	"trainmaster/master/evaluation"
)

// MaxPopulationParameters is the maximum number of hyper-parameters of a population.
const MaxPopulationParameters = 16

// parse reads the section population of a file.
func (p *Population) parse(n *yaml.Node) error {
	given := map[string]bool{}
	if err := mapping(n, func(key string, value *yaml.Node) error {
		given[key] = true
		return p.set(key, value)
	}); err != nil {
		return err
	}
	for _, key := range []string{"every", "figure", "hyper-parameters"} {
		if !given[key] {
			return at(n, fmt.Errorf("population: expected the key %s, found none", key))
		}
	}
	return nil
}

// set sets a field from its key.
func (p *Population) set(key string, n *yaml.Node) (err error) {
	switch key {
	case "every":
		var every string
		if every, err = text(key, n); err != nil {
			return err
		}
		if p.Every, err = evaluation.ParseEvery(every); err != nil {
			return err
		}
		if p.Every.Steps > 0 || p.Every == (evaluation.Every{}) {
			return fmt.Errorf(`every: expected passes or a time, such as "1pass" or "10m", found %q`, every)
		}
	case "figure":
		var goal string
		if goal, err = text(key, n); err == nil {
			err = p.setFigure(goal)
		}
	case "replace":
		//guard:population-settings-limited
		if p.Replace, err = number(key, n); err == nil && (p.Replace <= 0 || p.Replace > 0.5) {
			err = fmt.Errorf("replace: expected a number above 0 and at most 0.5, found %s", n.Value)
		}
	case "perturb":
		if p.Perturb, err = number(key, n); err == nil && (p.Perturb <= 1 || p.Perturb > 100) {
			err = fmt.Errorf("perturb: expected a factor above 1 and at most 100, found %s", n.Value)
		}
	case "hyper-parameters":
		p.Ranges = map[string]Range{}
		if err := mapping(n, p.parameter); err != nil {
			return err
		}
		if len(p.Ranges) == 0 || len(p.Ranges) > MaxPopulationParameters {
			return fmt.Errorf("hyper-parameters: expected 1 to %d of a population, found %d", MaxPopulationParameters, len(p.Ranges))
		}
	default:
		return unknown(key, "every, figure, replace, perturb or hyper-parameters")
	}
	return err
}

func (p *Population) setFigure(goal string) (err error) {
	p.Figure, err = evaluation.ParseGoal(goal)
	return err
}

// parameter reads the limits of a hyper-parameter.
func (p *Population) parameter(name string, n *yaml.Node) error {
	if err := checkName(name); err != nil {
		return err
	}
	var r Range
	given := map[string]bool{}
	if err := mapping(n, func(key string, value *yaml.Node) (err error) {
		given[key] = true
		switch key {
		case "min":
			r.Min, err = number(key, value)
		case "max":
			r.Max, err = number(key, value)
		default:
			err = unknown(key, "min or max")
		}
		return err
	}); err != nil {
		return err
	}
	switch {
	case !given["min"] || !given["max"]:
		return at(n, fmt.Errorf("%s: expected the keys min and max", name))
	case r.Min < 0 || r.Min >= r.Max:
		return at(n, fmt.Errorf("%s: expected 0 <= min < max, found %v and %v", name, r.Min, r.Max))
	case name == LearningRate && (r.Min == 0 || r.Max > maxRate):
		return at(n, fmt.Errorf("%s: expected limits above 0 and at most %v, found %v and %v", name, maxRate, r.Min, r.Max))
	}
	p.Ranges[name] = r
	return nil
}

// checkPopulation returns an error for a population that does not go with the schedules.
func (s *Strategy) checkPopulation() error {
	if s.Population == nil {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(s.Population.Ranges)) {
		if _, scheduled := s.Schedules[name]; scheduled {
			return fmt.Errorf("%s: expected a schedule or a range of the population, found both", name)
		}
	}
	if name, ok := s.HasPlateau(); ok {
		return errors.New(name + ": expected no plateau with a population: each trainer has figures of its own")
	}
	return nil
}
