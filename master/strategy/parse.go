package strategy

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"trainmaster/master/evaluation"
)

// The limits of a file.
const (
	MaxBytes      = 64 << 10
	MaxParameters = 64
	MaxRules      = 64
)

// ErrBadFile is returned for an invalid strategy file.
var ErrBadFile = errors.New("invalid strategy")

// Parse reads a strategy file.
func Parse(file []byte) (*Strategy, error) {
	if len(file) > MaxBytes {
		return nil, fmt.Errorf("%w: expected at most %d bytes, found %d", ErrBadFile, MaxBytes, len(file))
	}
	var document yaml.Node
	if err := yaml.Unmarshal(file, &document); err != nil {
		return nil, fmt.Errorf("%w: %s", ErrBadFile, strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if len(document.Content) == 0 {
		return nil, fmt.Errorf(`%w: expected "hyper-parameters", "population" or "stop", found an empty file`, ErrBadFile)
	}
	s := &Strategy{Schedules: map[string]Schedule{}}
	err := mapping(document.Content[0], func(key string, value *yaml.Node) error {
		switch key {
		case "hyper-parameters":
			return mapping(value, s.parameter)
		case "stop":
			return s.rules(value)
		case "population":
			s.Population = &Population{Replace: DefaultReplace, Perturb: DefaultPerturb}
			return s.Population.parse(value)
		}
		return unknown(key, `"hyper-parameters", "population" or "stop"`)
	})
	if err == nil {
		err = s.checkPopulation()
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBadFile, err)
	}
	return s, nil
}

// lineError is an error that has a line already.
type lineError struct{ error }

// at adds a line to an error, unless it has one.
func at(n *yaml.Node, err error) error {
	if _, ok := errors.AsType[lineError](err); ok || err == nil {
		return err
	}
	return lineError{fmt.Errorf("line %d: %w", n.Line, err)}
}

func unknown(key, expected string) error {
	return fmt.Errorf("expected %s, found the key %q", expected, key)
}

// mapping calls each for all pairs of a mapping. Keys are texts, and none is repeated.
func mapping(n *yaml.Node, each func(key string, value *yaml.Node) error) error {
	if n.Kind != yaml.MappingNode {
		return at(n, fmt.Errorf("expected keys and values, found %s", describe(n)))
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if key.Kind != yaml.ScalarNode || key.Tag != "!!str" {
			return at(key, fmt.Errorf("expected a text as the key, found %s", describe(key)))
		}
		if seen[key.Value] {
			return at(key, fmt.Errorf("key %q: expected once, found again", key.Value))
		}
		seen[key.Value] = true
		if err := each(key.Value, value); err != nil {
			return at(key, err)
		}
	}
	return nil
}

func describe(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "keys and values"
	case yaml.SequenceNode:
		return "a list"
	case yaml.AliasNode:
		return "an alias"
	}
	return strconv.Quote(n.Value)
}

// maxNumber keeps differences and products of numbers finite.
const maxNumber = 1e100

func number(key string, n *yaml.Node) (float64, error) {
	v, err := strconv.ParseFloat(n.Value, 64)
	//guard:strategy-numbers-are-limited
	if n.Kind != yaml.ScalarNode || n.Tag != "!!int" && n.Tag != "!!float" || err != nil || !(math.Abs(v) <= maxNumber) {
		return 0, fmt.Errorf("%s: expected a decimal number from -1e100 to 1e100, found %s", key, describe(n))
	}
	return v, nil
}

// maxRate is the largest learning rate.
const maxRate = 1e6

// maxSteps keeps sums and products of steps below 2^64.
const maxSteps = 1 << 53

func count(key string, n *yaml.Node) (uint64, error) {
	v, err := strconv.ParseUint(n.Value, 10, 64)
	if n.Kind != yaml.ScalarNode || n.Tag != "!!int" || err != nil || v == 0 || v > maxSteps {
		return 0, fmt.Errorf("%s: expected an integer from 1 to %d, found %s", key, int64(maxSteps), describe(n))
	}
	return v, nil
}

func text(key string, n *yaml.Node) (string, error) {
	if n.Kind != yaml.ScalarNode || n.Tag != "!!str" {
		return "", fmt.Errorf("%s: expected a text, found %s", key, describe(n))
	}
	return n.Value, nil
}

// settings has the required and the optional keys of each shape.
var settings = map[Shape]struct{ needs, may []string }{
	Constant: {[]string{"value"}, []string{"warm-up", "every"}},
	Step:     {[]string{"value", "steps", "factor"}, []string{"least", "warm-up", "every"}},
	Cosine:   {[]string{"value", "steps"}, []string{"end", "warm-up", "every"}},
	Plateau:  {[]string{"value", "figure", "factor", "patience"}, []string{"least", "warm-up", "every"}},
}

// checkName returns an error for the name of a hyper-parameter.
func checkName(name string) error {
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_."
	if name == "" || len(name) > 63 || strings.Trim(name, letters) != "" {
		return fmt.Errorf(`hyper-parameter: expected 1 to 63 letters, digits, "-", "_" and ".", found %.99q`, name)
	}
	return nil
}

// parameter reads the schedule of a hyper-parameter.
func (s *Strategy) parameter(name string, n *yaml.Node) error {
	if err := checkName(name); err != nil {
		return err
	}
	if len(s.Schedules) == MaxParameters {
		return fmt.Errorf("expected at most %d hyper-parameters, found more", MaxParameters)
	}
	schedule := Schedule{Every: 100}
	given := map[string]*yaml.Node{}
	if err := mapping(n, func(key string, value *yaml.Node) error {
		given[key] = value
		return schedule.set(key, value)
	}); err != nil {
		return err
	}
	shape, ok := settings[schedule.Shape]
	if !ok {
		return at(n, fmt.Errorf("%s: expected the key schedule", name))
	}
	for _, key := range shape.needs {
		if given[key] == nil {
			return at(n, fmt.Errorf("%s: schedule %s: expected the key %s, found none", name, schedule.Shape, key))
		}
		delete(given, key)
	}
	for _, key := range append(shape.may, "schedule") {
		delete(given, key)
	}
	for key, value := range given {
		return at(value, fmt.Errorf("%s: schedule %s: expected no key %s", name, schedule.Shape, key))
	}
	//guard:learning-rate-is-positive
	if name == LearningRate && !(schedule.Value > 0 && schedule.Value <= maxRate && schedule.End >= 0 && schedule.End <= maxRate && schedule.Least >= 0 && schedule.Least <= maxRate) {
		return at(n, fmt.Errorf("%s: expected a value above 0 and at most %v, and from 0 for end and least, found %v, %v and %v", name, maxRate, schedule.Value, schedule.End, schedule.Least))
	}
	s.Schedules[name] = schedule
	return nil
}

// set sets a field from its key.
func (s *Schedule) set(key string, n *yaml.Node) (err error) {
	switch key {
	case "schedule":
		var shape string
		if shape, err = text(key, n); err != nil {
			return err
		}
		s.Shape = Shape(shape)
		if _, ok := settings[s.Shape]; !ok {
			return fmt.Errorf("schedule: expected constant, step, cosine or plateau, found %q", shape)
		}
	case "value":
		s.Value, err = number(key, n)
	case "end":
		s.End, err = number(key, n)
	case "least":
		s.Least, err = number(key, n)
	case "factor":
		if s.Factor, err = number(key, n); err == nil && (s.Factor <= 0 || s.Factor >= 1) {
			err = fmt.Errorf("factor: expected a number between 0 and 1, found %s", n.Value)
		}
	case "warm-up":
		s.WarmUp, err = count(key, n)
	case "every":
		s.Every, err = count(key, n)
	case "steps":
		s.Steps, err = count(key, n)
	case "patience":
		var rounds uint64
		rounds, err = count(key, n)
		s.Patience = int(rounds)
	case "figure":
		var goal string
		if goal, err = text(key, n); err == nil {
			s.Figure, err = evaluation.ParseGoal(goal)
		}
	default:
		return unknown(key, "a key of a schedule")
	}
	return err
}

// rules reads the list of stop rules.
func (s *Strategy) rules(n *yaml.Node) error {
	if n.Kind != yaml.SequenceNode {
		return fmt.Errorf("stop: expected a list, found %s", describe(n))
	}
	if len(n.Content) > MaxRules {
		return fmt.Errorf("stop: expected at most %d rules, found %d", MaxRules, len(n.Content))
	}
	for _, item := range n.Content {
		before := len(s.Stop)
		if err := mapping(item, func(key string, value *yaml.Node) error {
			if key != "when" {
				return unknown(key, "when")
			}
			when, err := text(key, value)
			if err != nil {
				return err
			}
			rule, err := parseRule(when)
			if err != nil {
				return fmt.Errorf("when: %w", err)
			}
			s.Stop = append(s.Stop, rule)
			return nil
		}); err != nil {
			return err
		}
		if len(s.Stop) == before {
			return at(item, errors.New("expected the key when, found none"))
		}
	}
	return nil
}
