package scaledobject

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/mica-gpu/mica/pkg/elastic/profile"
)

// claimsOfAReplica is more than a pod has.
const claimsOfAReplica = 1000

// signals are what the triggers are made of.
type signals struct {
	// devices are those that Mica measures, load those that Prometheus knows of the engine.
	devices, load []string
	of            series
	// untold are those of the profile that the engine does not tell.
	untold []string
}

// signals is an error where the profile has signals of load and nothing could tell one.
func (o Options) signals(p profile.Profile) (signals, error) {
	var s signals
	for _, signal := range p.Triggers {
		if profile.OfDevices(signal) {
			s.devices = append(s.devices, signal)
		} else {
			s.load = append(s.load, signal)
		}
	}
	if len(s.load) == 0 {
		return s, nil
	}
	var err error
	if s.of, err = o.Serving.series(o.Target); err != nil {
		return signals{}, fmt.Errorf("profile %s scales by %s: %w", p.Name, s.load[0], err)
	}
	wanted := s.load
	s.load = nil
	for _, signal := range wanted {
		if _, told := s.of.query(signal); told {
			s.load = append(s.load, signal)
		} else {
			s.untold = append(s.untold, signal)
		}
	}
	if len(s.load) == 0 {
		return signals{}, fmt.Errorf("profile %s scales by %s, of which the metrics of %s tell nothing: choose another profile, or name what the engine tells in triggers of a file for --profiles",
			p.Name, strings.Join(s.untold, ", "), o.Serving.Engine)
	}
	return s, nil
}

// controllerTriggers have one for each signal of the profile, and what tells of demand without a
// replica. The controller asks Prometheus.
func (o Options) controllerTriggers(p profile.Profile, s signals, by *season) []Trigger {
	var triggers []Trigger
	if o.Min == 0 {
		triggers = append(triggers, o.prometheus("demand", o.Demand, p.Targets[profile.WaitingRequests], nil))
	}
	if o.Min+o.Warm == 0 {
		triggers = append(triggers,
			// Keeps the first replica while its node is still booting, which takes longer than
			// the cooldown: devices that are allocated do so from then on. It asks for no
			// second one, which would have claims that wait as well, and so ask for more.
			o.trigger("pendingClaims", map[string]string{"metric": "pendingClaims", "threshold": strconv.Itoa(claimsOfAReplica * int(o.Max))}))
	}
	for _, signal := range p.Triggers {
		switch {
		case slices.Contains(s.devices, signal):
			triggers = append(triggers, o.device(p, signal))
		case slices.Contains(s.load, signal):
			triggers = append(triggers, o.signal(p, s.of, signal))
		}
	}
	if by != nil {
		// Of several triggers the one that asks for the most counts: 0 is nothing.
		triggers = append(triggers, o.prometheus("ahead", o.foreseen(p, s, *by)+" or vector(0)", 1, nil))
	}
	return triggers
}

// device is a trigger for what Mica measures. The controller has the thresholds, and tells KEDA
// when an operator changes them.
func (o Options) device(p profile.Profile, signal string) Trigger {
	metadata := map[string]string{"metric": signal, "profile": p.Name}
	if o.Demand != "" && !p.Holds(signal) {
		metadata["role"] = "hold" // the demand tells of load, of which the profile knows nothing
	}
	return o.trigger(signal, metadata)
}

// signal is a trigger for what the engine tells.
func (o Options) signal(p profile.Profile, of series, signal string) Trigger {
	q := o.query(of, signal)
	more := map[string]string{"valueWhileNotReady": "0"}
	if q.average {
		more["valueType"] = "average"
	}
	if activation := p.Activation[signal]; activation > 0 {
		more["activationThreshold"] = number(activation)
	}
	return o.prometheus(signal, q.promQL, p.Targets[signal], more)
}

// query is that of a signal which the engine tells.
func (o Options) query(of series, signal string) query {
	if signal == profile.KVCache && o.Warm > 0 {
		return of.summedCache() // the empty caches of standbys would lower the mean
	}
	q, _ := of.query(signal)
	return q
}

func (o Options) prometheus(name, query string, threshold float64, more map[string]string) Trigger {
	metadata := map[string]string{"metric": "prometheus", "query": query, "threshold": number(threshold)}
	maps.Copy(metadata, more)
	return o.trigger(name, metadata)
}

// trigger adds what all triggers of the controller have.
func (o Options) trigger(name string, metadata map[string]string) Trigger {
	metadata["scalerAddress"] = o.Scaler.Address
	metadata["target"] = o.Target.String()
	if o.Warm > 0 {
		metadata["warm"] = strconv.Itoa(int(o.Warm))
	}
	ref := o.Scaler.reference()
	if ref != nil {
		// Without, KEDA would go on in plain text where a key of the Secret is missing.
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
