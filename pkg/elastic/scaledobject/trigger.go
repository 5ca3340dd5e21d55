package scaledobject

import (
	"fmt"
	"maps"
	"strconv"

	"github.com/mica-gpu/mica/pkg/elastic/profile"
)

// claimsOfAReplica is more than a pod has.
const claimsOfAReplica = 1000

// triggers are those of the profile, and what tells of demand without a replica.
func (o Options) triggers(p profile.Profile) ([]Trigger, error) {
	var triggers []Trigger
	if o.Min == 0 {
		threshold, ok := p.Targets[profile.WaitingRequests]
		if !ok {
			return nil, fmt.Errorf("profile %s has no target for %s, by which replicas are counted for the demand", p.Name, profile.WaitingRequests)
		}
		triggers = append(triggers, o.prometheus("demand", o.Demand, threshold, nil))
	}
	if o.Min+o.Warm == 0 {
		triggers = append(triggers,
			// Keeps the first replica while its node is still booting, which takes longer than
			// the cooldown: devices that are allocated do so from then on. It asks for no
			// second one, which would have claims that wait as well, and so ask for more.
			o.trigger("pendingClaims", map[string]string{"metric": "pendingClaims", "threshold": strconv.Itoa(claimsOfAReplica * int(o.Max))}))
	}
	for _, signal := range p.Triggers {
		t, err := o.signal(p, signal)
		if err != nil {
			return nil, err
		}
		triggers = append(triggers, t)
	}
	return triggers, nil
}

// signal is a trigger for what the profile names.
func (o Options) signal(p profile.Profile, signal string) (Trigger, error) {
	if profile.OfDevices(signal) {
		// The controller has the thresholds, and tells KEDA when an operator changes them.
		metadata := map[string]string{"metric": signal, "profile": p.Name}
		if o.Demand != "" && !p.Holds(signal) {
			metadata["role"] = "hold" // the demand tells of load, of which the profile knows nothing
		}
		return o.trigger(signal, metadata), nil
	}
	names, of, err := o.Serving.series()
	if err != nil {
		return Trigger{}, fmt.Errorf("profile %s scales by %s: %w", p.Name, signal, err)
	}
	q := queries(names, of)[signal]
	if signal == profile.KVCache && o.Warm > 0 {
		q = summedCache(names, of) // the empty caches of standbys would lower the mean
	}
	more := map[string]string{"valueWhileNotReady": "0"}
	if q.average {
		more["valueType"] = "average"
	}
	if activation := p.Activation[signal]; activation > 0 {
		more["activationThreshold"] = number(activation)
	}
	return o.prometheus(signal, q.promQL, p.Targets[signal], more), nil
}

func (o Options) prometheus(name, query string, threshold float64, more map[string]string) Trigger {
	metadata := map[string]string{"metric": "prometheus", "query": query, "threshold": number(threshold)}
	maps.Copy(metadata, more)
	return o.trigger(name, metadata)
}

// trigger adds what all triggers have.
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
