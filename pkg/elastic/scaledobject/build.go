package scaledobject

import (
	"errors"
	"fmt"
	"math"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/pkg/elastic/profile"
	"github.com/mica-gpu/mica/pkg/elastic/workload"
)

// Options say what is to be made.
type Options struct {
	// Target is scaled. The objects get its namespace, or none where it has none.
	Target   workload.Ref
	Profiles profile.Set
	// Profile is the name of one of Profiles.
	Profile string
	// Min and Max are replicas.
	Min, Max int32
	// Warm is how many replicas wait, loaded, besides those that are asked for; -1: as many as
	// the profile says. They are part of Max, and not of Min.
	Warm    int32
	Serving Serving
	// Demand is PromQL that counts requests also while no replica runs. It is needed where Min
	// is 0: a workload without replicas tells nothing.
	Demand string
	// Ahead is how far in advance replicas are asked for by what was needed a Season ago, both as
	// Prometheus writes times; empty: not at all, and 7d.
	Ahead, Season string
	// Schedules are START=REPLICAS, START for DURATION=REPLICAS or START to END=REPLICAS, with start
	// and end in the five fields of cron, in TimeZone; empty: UTC.
	Schedules []string
	TimeZone  string
	// Queue tells of demand in place of Demand, and with any number of replicas.
	Queue  Queue
	Scaler Scaler
	// Selector selects the target's pods, of a gang one of each, as KEDA's kubernetes-workload scaler
	// takes it; empty: it is unknown.
	Selector string
	// Prometheus is asked by KEDA, or by the controller, by a trigger for each signal, where
	// ThroughController is set.
	Prometheus        Prometheus
	ThroughController bool
	// NoTolerance leaves out the threshold for scaling in, which the HorizontalPodAutoscaler has
	// from Kubernetes 1.35 on.
	NoTolerance bool
}

// Scaler is where and how KEDA reaches the controller.
type Scaler struct {
	// Address is host:port.
	Address string
	// Secret has ca.crt, in the target's namespace; empty without TLS.
	Secret string
	// ClientCertificate is whether Secret has tls.crt and tls.key for the controller.
	ClientCertificate bool
	// Cluster names a ClusterTriggerAuthentication that is there, in place of Secret.
	Cluster string
}

// Objects are what is applied.
type Objects struct {
	// Authentications are empty where nothing has to be told.
	Authentications []*TriggerAuthentication
	ScaledObject    ScaledObject
	// Untold are signals of the profile that the engine does not tell.
	Untold []string
}

// Build makes the objects. An error says which option does not fit, and what would.
func Build(o Options) (Objects, error) {
	p, err := o.Profiles.Get(o.Profile)
	if err != nil {
		return Objects{}, err
	}
	if err := o.validate(p); err != nil {
		return Objects{}, err
	}
	if o.Warm < 0 {
		o.Warm = p.Warm
	}
	if o.Min+o.Warm > o.Max {
		return Objects{}, fmt.Errorf("%d replicas that serve and %d that wait are more than %d in all: allow more", o.Min, o.Warm, o.Max)
	}
	s, err := o.signals(p)
	if err != nil {
		return Objects{}, err
	}
	if o.Demand != "" && p.Targets[profile.WaitingRequests] == 0 {
		return Objects{}, fmt.Errorf("profile %s has no target for %s, by which replicas are counted for the demand", p.Name, profile.WaitingRequests)
	}
	triggers, formula, err := o.triggers(p, s)
	if err != nil {
		return Objects{}, err
	}
	return Objects{
		Authentications: o.authentications(triggers),
		Untold:          s.untold,
		ScaledObject: ScaledObject{
			TypeMeta: metav1.TypeMeta{APIVersion: apiVersion, Kind: "ScaledObject"},
			Metadata: Metadata{Name: o.Target.Name, Namespace: o.Target.Namespace},
			Spec: Spec{
				ScaleTargetRef:  ScaleTargetRef{APIVersion: "apps/v1", Kind: o.Target.Kind, Name: o.Target.Name},
				PollingInterval: int64(o.Profiles.PollingInterval / time.Second),
				CooldownPeriod:  int64(p.Cooldown / time.Second),
				MinReplicaCount: o.Min + o.Warm,
				MaxReplicaCount: o.Max,
				Fallback:        o.fallback(formula),
				Advanced: Advanced{
					HorizontalPodAutoscalerConfig: HorizontalPodAutoscalerConfig{Behavior: o.behavior(p)},
					ScalingModifiers:              formula,
				},
				Triggers: triggers,
			},
		},
	}, nil
}

// triggers are all of them, and how they are combined; nil: the most of them counts.
func (o Options) triggers(p profile.Profile, s signals) ([]Trigger, *ScalingModifiers, error) {
	by, err := o.season()
	if err != nil {
		return nil, nil, err
	}
	if by != nil {
		if err := s.foreseeable(p); err != nil {
			return nil, nil, err
		}
	}
	windows, err := o.windows()
	if err != nil {
		return nil, nil, err
	}
	if o.Queue.there() {
		triggers, err := o.queueTriggers(p)
		if err != nil {
			return nil, nil, err
		}
		triggers = append(triggers, o.cronTriggers(windows)...)
		return triggers, o.modifiers(triggers), nil
	}
	// Gates of warm replicas open by the load, which the controller then has to see.
	if o.ThroughController || o.Warm > 0 || len(s.load) == 0 && o.Demand == "" {
		return append(o.controllerTriggers(p, s, by), o.cronTriggers(windows)...), nil, nil
	}
	if err := o.Prometheus.validate(); err != nil {
		return nil, nil, err
	}
	triggers := append(o.nativeTriggers(p, s, by), o.cronTriggers(windows)...)
	return triggers, o.modifiers(triggers), nil
}

// fallback keeps what is: a source that goes away under load must not take replicas with it, and
// one that nobody can ask is no demand. At 0 replicas KEDA takes any fallback for activation; it
// keeps the 0 where there is none.
func (o Options) fallback(formula *ScalingModifiers) *Fallback {
	if formula != nil && o.degrades() {
		// Without a replica to fall back to, KEDA would take an error for no demand (KEDA 2.21,
		// pkg/scaling/executor). The formula never gives nothing, so that the number is not used.
		return &Fallback{Behavior: "scalingModifiers", Replicas: max(o.Min+o.Warm, 1)}
	}
	f := &Fallback{FailureThreshold: o.Profiles.Fallback.Failures, Behavior: "currentReplicas", Replicas: o.Min + o.Warm}
	switch least := o.Profiles.Fallback.Replicas; {
	case least > 0:
		f.Behavior, f.Replicas = "currentReplicasIfHigher", min(max(least, o.Min+o.Warm), o.Max)
	case o.Min+o.Warm == 0:
		return nil
	}
	return f
}

func (o Options) validate(p profile.Profile) error {
	if err := o.Queue.validate(o, p); err != nil {
		return err
	}
	switch {
	case o.Min < 0 || o.Max < 1 || o.Min > o.Max:
		return fmt.Errorf("from %d to %d replicas cannot be: the smallest number is 0 or more, the largest at least 1 and at least that", o.Min, o.Max)
	case o.Min == 0 && o.Demand == "" && !o.Queue.there():
		return errors.New("with 0 replicas nothing tells of requests that wait: give a query that does, such as of the gateway's queue, or keep 1 replica")
	case o.Min > 0 && o.Demand != "":
		return fmt.Errorf("a query for what waits without a replica has no use with at least %d replicas: leave it out, or allow 0", o.Min)
	case o.Scaler.Address == "":
		return errors.New("the address of the controller is empty: give host:port")
	case o.Scaler.Secret != "" && o.Scaler.Cluster != "":
		return fmt.Errorf("both Secret %s and ClusterTriggerAuthentication %s would say how the controller is reached: choose one", o.Scaler.Secret, o.Scaler.Cluster)
	case o.Scaler.ClientCertificate && o.Scaler.Secret == "":
		return errors.New("a client certificate needs the Secret that has it")
	}
	return nil
}

// authentication has the Secret's name, so that all workloads with one Secret share it.
func (s Scaler) authentication(namespace string) *TriggerAuthentication {
	if s.Secret == "" {
		return nil
	}
	refs := []SecretTargetRef{{Parameter: "caCert", Name: s.Secret, Key: "ca.crt"}}
	if s.ClientCertificate {
		refs = append(refs,
			SecretTargetRef{Parameter: "tlsClientCert", Name: s.Secret, Key: "tls.crt"},
			SecretTargetRef{Parameter: "tlsClientKey", Name: s.Secret, Key: "tls.key"})
	}
	a := newAuthentication(s.Secret, namespace)
	a.Spec.SecretTargetRef = refs
	return a
}

func newAuthentication(name, namespace string) *TriggerAuthentication {
	return &TriggerAuthentication{
		TypeMeta: metav1.TypeMeta{APIVersion: apiVersion, Kind: "TriggerAuthentication"},
		Metadata: Metadata{Name: name, Namespace: namespace},
	}
}

func (o Options) behavior(p profile.Profile) autoscalingv2.HorizontalPodAutoscalerBehavior {
	down := rules(o.Profiles.ScaleIn, autoscalingv2.MinChangePolicySelect)
	if tolerance := p.ScaleInTolerance(); tolerance > 0 && !o.NoTolerance {
		down.Tolerance = resource.NewMilliQuantity(int64(math.Round(tolerance*1000)), resource.DecimalSI)
	}
	return autoscalingv2.HorizontalPodAutoscalerBehavior{
		ScaleUp:   rules(o.Profiles.ScaleOut, autoscalingv2.MaxChangePolicySelect),
		ScaleDown: down,
	}
}

func rules(rate profile.Rate, choice autoscalingv2.ScalingPolicySelect) *autoscalingv2.HPAScalingRules {
	period := int32(rate.Period / time.Second)
	return &autoscalingv2.HPAScalingRules{
		StabilizationWindowSeconds: ptr.To(int32(rate.Stabilization / time.Second)),
		SelectPolicy:               &choice,
		Policies: []autoscalingv2.HPAScalingPolicy{
			{Type: autoscalingv2.PercentScalingPolicy, Value: rate.Percent, PeriodSeconds: period},
			{Type: autoscalingv2.PodsScalingPolicy, Value: rate.Pods, PeriodSeconds: period},
		},
	}
}
