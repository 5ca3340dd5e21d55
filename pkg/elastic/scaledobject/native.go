package scaledobject

import (
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mica-gpu/mica/pkg/elastic/profile"
)

// Prometheus is where and how KEDA queries Prometheus.
type Prometheus struct {
	// Address is the URL of its HTTP API.
	Address string
	// Region is that of an Amazon Managed Service for Prometheus. KEDA signs its requests (SigV4) with the
	// identity of its own pod. Empty elsewhere.
	Region string
	// Headers are Name=value, such as X-Scope-OrgID=team-a for a tenant.
	Headers []string
	// Secret has a bearer token in the key token, in the target's namespace; may be empty.
	Secret string
}

var header = regexp.MustCompile(`^[A-Za-z0-9-]+=[^,\s][^,]*$`)

func (p Prometheus) validate() error {
	u, err := url.Parse(p.Address)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || u.User != nil {
		return errors.New("the address of Prometheus is not valid: give a URL without credentials, such as http://prometheus.monitoring:9090")
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

// The formula uses the names of triggers.
const (
	triggerLoad     = "load"
	triggerHeld     = "held"
	triggerPossible = "possible"
	triggerPods     = "pods"
)

// degrades reports whether the formula has values for triggers that fail. KEDA then leaves out a trigger's
// value from the first failure (fallback.behavior scalingModifiers, from KEDA 2.20). If the load fails, all
// replicas stay: the formula has no value or, with a minimum of 0, where KEDA would take that for no
// demand, it counts pods. A profile with fallback replicas uses those instead.
func (o Options) degrades() bool {
	return o.Profiles.Fallback.Replicas == 0 && (o.Min > 0 || o.Selector != "")
}

// countsPods reports whether the number of pods replaces an unknown load.
func (o Options) countsPods() bool { return o.degrades() && o.Min == 0 }

// modifiers combine the triggers: the maximum of load and held replicas, limited to the possible ones.
func (o Options) modifiers() *ScalingModifiers {
	load, held, possible := triggerLoad, triggerHeld, triggerPossible
	if o.degrades() {
		held += " ?? 0"
		possible += fmt.Sprintf(" ?? %d", o.Max)
	}
	if o.countsPods() {
		load = fmt.Sprintf("(%s ?? %s)", triggerLoad, triggerPods)
	}
	return &ScalingModifiers{Formula: fmt.Sprintf("min([max([%s, %s]), %s])", load, held, possible), Target: "1"}
}

// nativeTriggers are KEDA's own, with one Prometheus query for all signals, and the controller's. All count
// replicas. The controller's are pushed: KEDA learns the name of a metric from the stream or by asking, and a
// trigger without a name has no fallback.
func (o Options) nativeTriggers(p profile.Profile, s signals) []Trigger {
	load := Trigger{
		Type: "prometheus", Name: triggerLoad,
		// The autoscaler reads every 15 s and gets the value of KEDA's last poll.
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
	all := []Trigger{
		load,
		o.trigger(triggerHeld, map[string]string{"metric": "heldReplicas", "profile": p.Name}),
		o.trigger(triggerPossible, map[string]string{"metric": "possibleReplicas"}),
	}
	if o.countsPods() {
		all = append(all, Trigger{Type: "kubernetes-workload", Name: triggerPods, Metadata: map[string]string{"podSelector": o.Selector, "value": "1"}})
	}
	return all
}

// load is PromQL for the replicas that the signal with the highest demand asks for. Each part has its
// signal's name in a label, for people who query it.
func (o Options) load(p profile.Profile, s signals) string {
	var all []string
	add := func(signal, replicas string, target float64) {
		all = append(all, fmt.Sprintf(`label_replace(%s / %s, "signal", %q, "", "")`, replicas, number(target), signal))
	}
	if o.Demand != "" {
		add("demand", "sum("+o.Demand+")", p.Targets[profile.WaitingRequests])
	}
	for _, signal := range s.load {
		q, _ := s.of.query(signal)
		replicas := "(" + q.promQL + ")"
		if q.average {
			replicas += " * " + s.of.replicas()
		}
		add(signal, replicas, p.Targets[signal])
	}
	return "max(" + strings.Join(all, " or ") + ")"
}

// replicas counts the replicas that Prometheus scrapes, which turns a mean into a total. A replica may have
// several series (ranks, engines), but one instance.
func (s series) replicas() string {
	for _, signal := range []string{profile.WaitingRequests, profile.RunningRequests, profile.KVCache} {
		if m, ok := s.gauges[signal]; ok {
			return "count(count by (instance) (" + s.of(m, "", "%s") + "))"
		}
	}
	return "1"
}

func (o Options) prometheusAuthentication() string { return o.Target.Name + "-prometheus" }

// authentications returns the objects that the triggers refer to.
func (o Options) authentications(triggers []Trigger) []*TriggerAuthentication {
	var all []*TriggerAuthentication
	add := func(name string, spec AuthenticationSpec) {
		all = append(all, &TriggerAuthentication{
			TypeMeta: metav1.TypeMeta{APIVersion: apiVersion, Kind: "TriggerAuthentication"},
			Metadata: Metadata{Name: name, Namespace: o.Target.Namespace},
			Spec:     spec,
		})
	}
	if secret := o.Scaler.Secret; secret != "" {
		refs := []SecretTargetRef{{Parameter: "caCert", Name: secret, Key: "ca.crt"}}
		if o.Scaler.ClientCertificate {
			refs = append(refs, SecretTargetRef{Parameter: "tlsClientCert", Name: secret, Key: "tls.crt"}, SecretTargetRef{Parameter: "tlsClientKey", Name: secret, Key: "tls.key"})
		}
		add(secret, AuthenticationSpec{SecretTargetRef: refs}) // workloads with one Secret share it
	}
	switch {
	case !slices.ContainsFunc(triggers, func(t Trigger) bool { return t.Type == "prometheus" && t.AuthenticationRef != nil }):
	case o.Prometheus.Region != "":
		add(o.prometheusAuthentication(), AuthenticationSpec{PodIdentity: &PodIdentity{Provider: "aws"}})
	default:
		add(o.prometheusAuthentication(), AuthenticationSpec{SecretTargetRef: []SecretTargetRef{{Parameter: "bearerToken", Name: o.Prometheus.Secret, Key: "token"}}})
	}
	return all
}
