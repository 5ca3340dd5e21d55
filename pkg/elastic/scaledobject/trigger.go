package scaledobject

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/mica-gpu/mica/pkg/elastic/profile"
)

// signals are a profile's signals by source.
type signals struct {
	// devices are measured by Mica; load is in Prometheus, from the engine.
	devices, load []string
	of            series
	// missing are those without a metric of the engine.
	missing []string
}

// signals fails if the profile scales by load and the engine has none of its signals.
func (o Options) signals(p profile.Profile) (signals, error) {
	var s signals
	var load []string
	for _, signal := range p.Triggers {
		if profile.OfDevices(signal) {
			s.devices = append(s.devices, signal)
		} else {
			load = append(load, signal)
		}
	}
	if len(load) == 0 {
		return s, nil
	}
	var err error
	if s.of, err = o.Serving.series(o.Target); err != nil {
		return signals{}, fmt.Errorf("profile %s scales by %s: %w", p.Name, load[0], err)
	}
	for _, signal := range load {
		if _, known := s.of.query(signal); known {
			s.load = append(s.load, signal)
		} else {
			s.missing = append(s.missing, signal)
		}
	}
	if len(s.load) == 0 {
		return signals{}, fmt.Errorf("profile %s scales by %s, for which %s has no metric: choose another profile, or name other signals in triggers of a file for --profiles",
			p.Name, strings.Join(s.missing, ", "), o.Serving.Engine)
	}
	return s, nil
}

// controllerTriggers are one per signal, plus the demand without replicas. The controller queries Prometheus.
func (o Options) controllerTriggers(p profile.Profile, s signals) []Trigger {
	var triggers []Trigger
	if o.Min == 0 {
		triggers = append(triggers, o.prometheus("demand", o.Demand, p.Targets[profile.WaitingRequests], nil))
	}
	for _, signal := range p.Triggers {
		switch {
		case slices.Contains(s.devices, signal):
			triggers = append(triggers, o.device(p, signal))
		case slices.Contains(s.load, signal):
			triggers = append(triggers, o.signal(p, s.of, signal))
		}
	}
	return triggers
}

// device is a trigger for a metric of Mica. The controller knows the profile's thresholds, and sends changes
// to KEDA.
func (o Options) device(p profile.Profile, signal string) Trigger {
	metadata := map[string]string{"metric": signal, "profile": p.Name}
	if o.Demand != "" && !p.Holds(signal) {
		metadata["role"] = "hold" // the demand is the load, which the profile does not know
	}
	return o.trigger(signal, metadata)
}

// signal is a trigger for a metric of the engine.
func (o Options) signal(p profile.Profile, of series, signal string) Trigger {
	q, _ := of.query(signal)
	if signal == profile.KVCache && o.Warm > 0 {
		q = of.summedCache() // the empty caches of warm replicas would lower the mean
	}
	more := map[string]string{"valueWhileNotReady": "0"}
	if q.average {
		more["valueType"] = "average"
	}
	if activation := p.Activation[signal]; activation > 0 {
		more["activationThreshold"] = number(activation)
	}
	return o.prometheus(signal, q.promQL, p.Targets[signal], more)
}

func (o Options) prometheus(name, query string, threshold float64, more map[string]string) Trigger {
	metadata := map[string]string{"metric": "prometheus", "query": query, "threshold": number(threshold)}
	maps.Copy(metadata, more)
	return o.trigger(name, metadata)
}

// trigger adds the metadata that all triggers of the controller have.
func (o Options) trigger(name string, metadata map[string]string) Trigger {
	metadata["scalerAddress"] = o.Scaler.Address
	metadata["target"] = o.Target.String()
	if o.Warm > 0 {
		metadata["warm"] = strconv.Itoa(int(o.Warm))
	}
	ref := o.Scaler.reference()
	if ref != nil {
		// Otherwise KEDA uses plain text if the Secret lacks a key.
		metadata["enableTLS"] = "true"
	}
	return Trigger{Type: "external-push", Name: name, Metadata: metadata, AuthenticationRef: ref}
}

func (s Scaler) reference() *AuthenticationRef {
	switch {
	case s.Cluster != "":
		return &AuthenticationRef{Kind: "ClusterTriggerAuthentication", Name: s.Cluster}
	case s.Secret != "":
		return &AuthenticationRef{Kind: "TriggerAuthentication", Name: s.Secret}
	}
	return nil
}

func number(value float64) string { return strconv.FormatFloat(value, 'f', -1, 64) }
