package profile

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Limits of a HorizontalPodAutoscaler.
const (
	mostStabilization = time.Hour
	mostPeriod        = 30 * time.Minute
)

// validate returns all problems in one line.
func (s Set) validate() error {
	problems := []error{
		seconds("pollingInterval", s.PollingInterval.Duration, time.Second, time.Hour),
		atLeast(1, "fallback.failures", s.Fallback.Failures),
		atLeast(0, "fallback.replicas", s.Fallback.Replicas),
		s.ScaleOut.validate("scaleOut"),
		s.ScaleIn.validate("scaleIn"),
	}
	for _, name := range s.Names() {
		if err := s.profiles[name].validate(); err != nil {
			problems = append(problems, fmt.Errorf("profile %s: %w", name, err))
		}
	}
	return together(problems...)
}

func (r Rate) validate(name string) error {
	return together(
		seconds(name+".stabilization", r.Stabilization.Duration, 0, mostStabilization),
		seconds(name+".period", r.Period.Duration, time.Second, mostPeriod),
		atLeast(1, name+".percent", r.Percent),
		atLeast(1, name+".pods", r.Pods),
	)
}

func (p Profile) validate() error {
	problems := []error{seconds("cooldown", p.Cooldown.Duration, 0, 24*time.Hour), atLeast(0, "warm", p.Warm)}
	if len(p.Triggers) == 0 {
		problems = append(problems, errors.New("triggers is empty: name at least one thing to scale by"))
	}
	for i, trigger := range p.Triggers {
		if _, ok := p.Targets[trigger]; !ok {
			problems = append(problems, fmt.Errorf("triggers has %s, and targets has no number for it", trigger))
		}
		if slices.Contains(p.Triggers[:i], trigger) {
			problems = append(problems, fmt.Errorf("triggers has %s twice", trigger))
		}
	}
	for _, field := range []struct {
		name   string
		values map[string]float64
		check  func(signal string, value float64) error
	}{
		{"targets", p.Targets, target},
		{"activation", p.Activation, activation},
		{"scaleInBelow", p.ScaleInBelow, p.scaleIn},
	} {
		for _, signal := range slices.Sorted(maps.Keys(field.values)) {
			err := field.check(signal, field.values[signal])
			if !slices.Contains(known, signal) {
				err = fmt.Errorf("unknown signal: use %s", strings.Join(known, ", "))
			}
			if err != nil {
				problems = append(problems, fmt.Errorf("%s.%s: %w", field.name, signal, err))
			}
		}
	}
	return together(problems...)
}

func target(signal string, value float64) error {
	switch {
	case value <= 0:
		return fmt.Errorf("%v is not above 0", value)
	case percentages[signal] && value > 100:
		return fmt.Errorf("%v is more than 100 percent", value)
	}
	return nil
}

func activation(_ string, value float64) error {
	if value < 0 {
		return fmt.Errorf("%v is below 0", value)
	}
	return nil
}

// scaleIn requires a gap between the two thresholds, so that replicas do not flap.
func (p Profile) scaleIn(signal string, value float64) error {
	out, ok := p.Targets[signal]
	switch {
	case !ok:
		return errors.New("targets has no number for it")
	case value <= 0, value >= out:
		return fmt.Errorf("%v is not between 0 and %v, above which replicas are added", value, out)
	}
	return nil
}

// seconds requires whole seconds, the unit of KEDA and the autoscaler.
func seconds(name string, value, least, most time.Duration) error {
	if value < least || value > most || value%time.Second != 0 {
		return fmt.Errorf("%s is %v, and has to be whole seconds from %v to %v", name, value, least, most)
	}
	return nil
}

func atLeast(least int32, name string, value int32) error {
	if value < least {
		return fmt.Errorf("%s is %d, and has to be at least %d", name, value, least)
	}
	return nil
}

// together joins errors in one line, for logs and terminals.
func together(problems ...error) error {
	var texts []string
	for _, problem := range problems {
		if problem != nil {
			texts = append(texts, problem.Error())
		}
	}
	if len(texts) == 0 {
		return nil
	}
	return errors.New(strings.Join(texts, "; "))
}
