package scaledobject

import (
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/mica-gpu/mica/pkg/elastic/profile"
)

// Prometheus is where and how KEDA asks for what Prometheus knows.
type Prometheus struct {
	// Address is the URL of its HTTP API.
	Address string
	// Region is that of an Amazon Managed Service for Prometheus, which takes requests that are
	// signed (SigV4) with the identity of KEDA's pod; empty elsewhere.
	Region string
	// Headers are Name=value, such as X-Scope-OrgID=team-a for a tenant.
	Headers []string
	// Secret has a bearer token in token, in the target's namespace; empty without.
	Secret string
}

var header = regexp.MustCompile(`^[A-Za-z0-9-]+=[^,\s][^,]*$`)

func (p Prometheus) validate() error {
	u, err := url.Parse(p.Address)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || u.User != nil {
		return errors.New("the address of Prometheus cannot be used: give a URL without credentials, such as http://prometheus.monitoring:9090")
	}
	for _, h := range p.Headers {
		if !header.MatchString(h) {
			return fmt.Errorf("%q is no header: write Name=value without a comma, such as X-Scope-OrgID=team-a", h)
		}
	}
	if p.Region != "" && p.Secret != "" {
		return fmt.Errorf("requests to Prometheus cannot both be signed for region %s and have the token of Secret %s: choose one", p.Region, p.Secret)
	}
	return nil
}

// The names of the triggers are those in the formula.
const (
	triggerLoad     = "load"
	triggerHeld     = "held"
	triggerPossible = "possible"
)

// modifiers combine the triggers: what the load asks for and what is to stay, whichever is more,
// and no more than there can be devices for.
var modifiers = &ScalingModifiers{
	Formula: fmt.Sprintf("min([max([%s, %s]), %s])", triggerLoad, triggerHeld, triggerPossible),
	Target:  "1",
}

// nativeTriggers are one of KEDA's own, which asks Prometheus one query for all signals, and two of
// the controller, which ask it nothing. All count replicas.
func (o Options) nativeTriggers(p profile.Profile, s signals) []Trigger {
	load := Trigger{
		Type: "prometheus", Name: triggerLoad,
		// The autoscaler looks every 15 s, and gets what KEDA has read at its own interval.
		UseCachedMetrics: true,
		Metadata: map[string]string{
			"serverAddress": o.Prometheus.Address,
			"query":         o.load(p, s),
			"threshold":     "1",
			// Names that match nothing are an error, not an idle workload.
			"ignoreNullValues": "false",
		},
	}
	if o.Prometheus.Region != "" {
		load.Metadata["awsRegion"] = o.Prometheus.Region
	}
	if o.Prometheus.Secret != "" {
		load.Metadata["authModes"] = "bearer"
	}
	if len(o.Prometheus.Headers) > 0 {
		load.Metadata["customHeaders"] = strings.Join(o.Prometheus.Headers, ",")
	}
	if o.Prometheus.Region != "" || o.Prometheus.Secret != "" {
		load.AuthenticationRef = &AuthenticationRef{Kind: "TriggerAuthentication", Name: o.prometheusAuthentication()}
	}
	held := o.trigger(triggerHeld, map[string]string{"metric": "heldReplicas", "profile": p.Name})
	possible := o.trigger(triggerPossible, map[string]string{"metric": "possibleReplicas"})
	// KEDA asks for these when it looks; by the formula no push would say anything.
	held.Type, possible.Type = "external", "external"
	return []Trigger{load, held, possible}
}

func (o Options) prometheusAuthentication() string { return o.Target.Name + "-prometheus" }

// load is PromQL for the replicas that the signals ask for: the most that one of them does. Each
// has its name in a label, so that the inner part shows which.
func (o Options) load(p profile.Profile, s signals) string {
	var all []string
	add := func(signal, replicas string) {
		all = append(all, fmt.Sprintf(`label_replace(%s, "signal", %q, "", "")`, replicas, signal))
	}
	if o.Demand != "" {
		add("demand", fmt.Sprintf("sum(%s) / %s", o.Demand, number(p.Targets[profile.WaitingRequests])))
	}
	for _, signal := range s.load {
		q, _ := s.of.query(signal)
		replicas := "(" + q.promQL + ")"
		if q.average {
			replicas += " * " + s.of.replicas()
		}
		add(signal, replicas+" / "+number(p.Targets[signal]))
	}
	return "max(" + strings.Join(all, " or ") + ")"
}

// replicas counts those that are scraped: a mean times these is a total. What one replica has
// series of (ranks, engines) differs, its instance is one.
func (s series) replicas() string {
	for _, signal := range []string{profile.WaitingRequests, profile.RunningRequests, profile.KVCache} {
		if m, ok := s.gauges[signal]; ok {
			return "count(count by (instance) (" + s.of(m, "", "%s") + "))"
		}
	}
	return "1"
}

// authentications are what has to be applied for the triggers.
func (o Options) authentications(triggers []Trigger) []*TriggerAuthentication {
	var all []*TriggerAuthentication
	if a := o.Scaler.authentication(o.Target.Namespace); a != nil {
		all = append(all, a)
	}
	if !slices.ContainsFunc(triggers, func(t Trigger) bool { return t.Type == "prometheus" && t.AuthenticationRef != nil }) {
		return all
	}
	a := newAuthentication(o.prometheusAuthentication(), o.Target.Namespace)
	if o.Prometheus.Region != "" {
		a.Spec.PodIdentity = &PodIdentity{Provider: "aws"}
	} else {
		a.Spec.SecretTargetRef = []SecretTargetRef{{Parameter: "bearerToken", Name: o.Prometheus.Secret, Key: "token"}}
	}
	return append(all, a)
}
