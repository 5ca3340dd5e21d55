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
	triggerPods     = "pods"
)

// degrades reports whether the formula goes on without triggers that fail. KEDA then gives a trigger
// no value from its first failure on (fallback.behavior scalingModifiers, from KEDA 2.20). Without a
// source of demand all replicas stay: the formula has no value, and at a minimum of 0, where KEDA would
// take that for no demand, it counts pods. A profile with replicas to fall back to wants those.
func (o Options) degrades() bool {
	return o.Profiles.Fallback.Replicas == 0 && (o.Min+o.Warm > 0 || o.Selector != "")
}

// modifiers combine the triggers: the most that one of them asks for, and no more than there can be
// devices for.
func (o Options) modifiers(triggers []Trigger) *ScalingModifiers {
	var ask []string
	for _, t := range triggers {
		switch t.Name {
		case triggerPossible, triggerPods:
		case triggerQueue:
			// KEDA counts messages, all others replicas.
			ask = append(ask, fmt.Sprintf("%s / %d", o.otherwise(t.Name, fmt.Sprintf("(%s * %d)", triggerPods, o.Queue.Messages)), o.Queue.Messages))
		case triggerLoad:
			ask = append(ask, o.otherwise(t.Name, triggerPods))
		case triggerHeld:
			held := t.Name
			switch {
			case o.Queue.there() && o.countsPods():
				held += " ?? " + triggerPods // the queue no longer has the message that a worker has taken
			case o.degrades():
				held += " ?? 0"
			}
			ask = append(ask, held)
		default:
			ask = append(ask, t.Name)
		}
	}
	possible := triggerPossible
	if o.degrades() {
		possible += fmt.Sprintf(" ?? %d", o.Max)
	}
	return &ScalingModifiers{
		Formula: fmt.Sprintf("min([max([%s]), %s])", strings.Join(ask, ", "), possible),
		Target:  "1",
	}
}

// countsPods reports whether pods stand for a demand that is not known.
func (o Options) countsPods() bool {
	return o.degrades() && o.Selector != "" && (o.Min+o.Warm == 0 || o.Queue.there())
}

// otherwise is a trigger of demand in the formula, with what stands for it while it fails.
func (o Options) otherwise(name, instead string) string {
	if !o.countsPods() {
		return name
	}
	return fmt.Sprintf("(%s ?? %s)", name, instead)
}

// nativeTriggers are one of KEDA's own, which asks Prometheus one query for all signals, and two of
// the controller, which ask it nothing. All count replicas.
func (o Options) nativeTriggers(p profile.Profile, s signals, by *season) []Trigger {
	load := Trigger{
		Type: "prometheus", Name: triggerLoad,
		// The autoscaler looks every 15 s, and gets what KEDA has read at its own interval.
		UseCachedMetrics: true,
		Metadata: map[string]string{
			"serverAddress": o.Prometheus.Address,
			"query":         o.load(p, s, by),
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
	return append([]Trigger{load}, o.ownTriggers(p)...)
}

// ownTriggers are the controller's beside a trigger of KEDA's, and one that counts pods where the
// formula needs it. KEDA asks the controller for the name of a metric unless a stream has given it, and
// a trigger whose metric has no name has no fallback either: therefore they are pushed.
func (o Options) ownTriggers(p profile.Profile) []Trigger {
	all := []Trigger{
		o.trigger(triggerHeld, map[string]string{"metric": "heldReplicas", "profile": p.Name}),
		o.trigger(triggerPossible, map[string]string{"metric": "possibleReplicas"}),
	}
	if o.countsPods() {
		all = append(all, Trigger{Type: "kubernetes-workload", Name: triggerPods, Metadata: map[string]string{"podSelector": o.Selector, "value": "1"}})
	}
	return all
}

func (o Options) prometheusAuthentication() string { return o.Target.Name + "-prometheus" }

// load is PromQL for the replicas that the signals ask for: the most that one of them does.
func (o Options) load(p profile.Profile, s signals, by *season) string {
	asked := o.replicas(p, s, s.load)
	if by != nil {
		asked += " or " + labelled("ahead", o.foreseen(p, s, *by)+" and on () "+o.known(s))
	}
	return "max(" + asked + ")"
}

// replicas is PromQL for the replicas that each of the signals asks for, and the demand. Each has its
// name in a label, so that one sees which.
func (o Options) replicas(p profile.Profile, s signals, of []string) string {
	var all []string
	if o.Demand != "" {
		all = append(all, labelled("demand", fmt.Sprintf("sum(%s) / %s", o.Demand, number(p.Targets[profile.WaitingRequests]))))
	}
	for _, signal := range of {
		q := o.query(s.of, signal)
		replicas := "(" + q.promQL + ")"
		if q.average {
			replicas += " * " + s.of.replicas()
		}
		all = append(all, labelled(signal, replicas+" / "+number(p.Targets[signal])))
	}
	return strings.Join(all, " or ")
}

func labelled(signal, replicas string) string {
	return fmt.Sprintf(`label_replace(%s, "signal", %q, "", "")`, replicas, signal)
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
	if a := o.queueIdentity(); a != nil {
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
