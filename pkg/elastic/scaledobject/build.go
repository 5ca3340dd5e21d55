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

// Options are the input of Build.
type Options struct {
	// Target is the workload to scale. The objects get its namespace, which may be empty.
	Target   workload.Ref
	Profiles profile.Set
	// Profile is the name of one of Profiles.
	Profile string
	// Min and Max are replicas.
	Min, Max int32
	// Warm is the number of loaded replicas that wait for work, in addition to Min and within Max; -1 takes
	// the profile's number.
	Warm    int32
	Serving Serving
	// Demand is PromQL that counts requests also while no replica runs. Min 0 needs it, because a workload
	// without replicas has no metrics.
	Demand string
	Scaler Scaler
	// Selector selects the target's pods, one pod per gang, in the syntax of KEDA's kubernetes-workload
	// scaler; empty if unknown.
	Selector   string
	Prometheus Prometheus
	// NoTolerance leaves out the tolerance for scaling in, which a HorizontalPodAutoscaler has from
	// Kubernetes 1.35.
	NoTolerance bool
}

// Scaler is where and how KEDA reaches the controller.
type Scaler struct {
	// Address is host:port.
	Address string
	// Secret has ca.crt, in the target's namespace; empty without TLS.
	Secret string
	// ClientCertificate reports whether Secret has tls.crt and tls.key for the controller.
	ClientCertificate bool
	// Cluster is the name of an existing ClusterTriggerAuthentication, instead of Secret.
	Cluster string
}

// Objects are the objects to apply.
type Objects struct {
	Authentications []*TriggerAuthentication
	ScaledObject    ScaledObject
	// Missing are the profile's signals without a metric of the engine.
	Missing []string
}

// Build returns the objects. An error names the option that is wrong, and what to use instead.
func Build(o Options) (Objects, error) {
	p, err := o.Profiles.Get(o.Profile)
	if err != nil {
		return Objects{}, err
	}
	if err := o.validate(); err != nil {
		return Objects{}, err
	}
	if o.Warm < 0 {
		o.Warm = p.Warm
	}
	if o.Min+o.Warm > o.Max {
		return Objects{}, fmt.Errorf("%d serving and %d warm replicas are more than the maximum of %d: raise the maximum", o.Min, o.Warm, o.Max)
	}
	s, err := o.signals(p)
	if err != nil {
		return Objects{}, err
	}
	if o.Demand != "" && p.Targets[profile.WaitingRequests] == 0 {
		return Objects{}, fmt.Errorf("profile %s has no target for %s, which turns the demand into replicas", p.Name, profile.WaitingRequests)
	}
	var triggers []Trigger
	var formula *ScalingModifiers
	// Without load there is nothing to ask Prometheus. With warm replicas the controller asks it, because
	// it opens readiness gates by the load.
	if o.Warm > 0 || len(s.load) == 0 && o.Demand == "" {
		triggers = o.controllerTriggers(p, s)
	} else {
		if err := o.Prometheus.validate(); err != nil {
			return Objects{}, err
		}
		triggers, formula = o.nativeTriggers(p, s), o.modifiers()
	}
	return Objects{
		Authentications: o.authentications(triggers),
		Missing:         s.missing,
		ScaledObject: ScaledObject{
			TypeMeta: metav1.TypeMeta{APIVersion: apiVersion, Kind: "ScaledObject"},
			Metadata: Metadata{Name: o.Target.Name, Namespace: o.Target.Namespace},
			Spec: Spec{
				ScaleTargetRef:  ScaleTargetRef{APIVersion: "apps/v1", Kind: o.Target.Kind, Name: o.Target.Name},
				PollingInterval: int64(o.Profiles.PollingInterval.Duration / time.Second),
				CooldownPeriod:  int64(p.Cooldown.Duration / time.Second),
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

// fallback keeps the current replicas: a source that fails under load must not remove them, and an unknown
// load is no demand. At 0 replicas, KEDA takes any fallback for activation; without one it stays at 0.
func (o Options) fallback(formula *ScalingModifiers) *Fallback {
	if formula != nil && o.degrades() {
		// Without replicas to fall back to, KEDA takes an error for no demand (KEDA 2.21, pkg/scaling/executor).
		// KEDA does not use the number, because the formula always has a value.
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

func (o Options) validate() error {
	switch {
	case o.Min < 0 || o.Max < 1 || o.Min > o.Max:
		return fmt.Errorf("%d to %d replicas is no range: the minimum is 0 or more, the maximum 1 or more and not below the minimum", o.Min, o.Max)
	case o.Min == 0 && o.Demand == "":
		return errors.New("with 0 replicas no metric counts waiting requests: give a query that does, such as the gateway's queue, or keep 1 replica")
	case o.Min > 0 && o.Demand != "":
		return fmt.Errorf("a query for demand without replicas has no use with at least %d replicas: leave it out, or allow 0", o.Min)
	case o.Scaler.Address == "":
		return errors.New("the address of the controller is empty: give host:port")
	case o.Scaler.Secret != "" && o.Scaler.Cluster != "":
		return fmt.Errorf("both Secret %s and ClusterTriggerAuthentication %s authenticate KEDA at the controller: choose one", o.Scaler.Secret, o.Scaler.Cluster)
	case o.Scaler.ClientCertificate && o.Scaler.Secret == "":
		return errors.New("a client certificate needs the Secret that has it")
	}
	return nil
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
	period := int32(rate.Period.Duration / time.Second)
	return &autoscalingv2.HPAScalingRules{
		StabilizationWindowSeconds: ptr.To(int32(rate.Stabilization.Duration / time.Second)),
		SelectPolicy:               &choice,
		Policies: []autoscalingv2.HPAScalingPolicy{
			{Type: autoscalingv2.PercentScalingPolicy, Value: rate.Percent, PeriodSeconds: period},
			{Type: autoscalingv2.PodsScalingPolicy, Value: rate.Pods, PeriodSeconds: period},
		},
	}
}
