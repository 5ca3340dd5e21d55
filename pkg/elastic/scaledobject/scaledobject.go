// Package scaledobject makes the KEDA objects by which a workload is scaled: a ScaledObject with
// triggers for what the workload's profile names, and what is needed to reach the controller and
// Prometheus. It knows the names of the engines' metrics; it reads no cluster.
package scaledobject

import (
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// apiVersion is that of KEDA's kinds.
const apiVersion = "keda.sh/v1alpha1"

// ScaledObject has the fields of KEDA's kind that are filled here. KEDA's own types would bring
// all that it talks to.
type ScaledObject struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        Metadata `json:"metadata"`
	Spec            Spec     `json:"spec"`
}

// Metadata of an object. Without a namespace it is created in that of who applies it.
type Metadata struct {
	Name      string `json:"name"`
	Namespace string `json:"namespace,omitempty"`
}

// Spec of a ScaledObject. Periods are seconds.
type Spec struct {
	ScaleTargetRef  ScaleTargetRef `json:"scaleTargetRef"`
	PollingInterval int64          `json:"pollingInterval"`
	CooldownPeriod  int64          `json:"cooldownPeriod"`
	MinReplicaCount int32          `json:"minReplicaCount"`
	MaxReplicaCount int32          `json:"maxReplicaCount"`
	Fallback        *Fallback      `json:"fallback,omitempty"`
	Advanced        Advanced       `json:"advanced"`
	Triggers        []Trigger      `json:"triggers"`
}

// ScaleTargetRef names what is scaled.
type ScaleTargetRef struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Name       string `json:"name"`
}

// Fallback says what KEDA does after more than FailureThreshold failures of a trigger.
type Fallback struct {
	FailureThreshold int32  `json:"failureThreshold"`
	Replicas         int32  `json:"replicas"`
	Behavior         string `json:"behavior"`
}

// Advanced has what KEDA hands to the HorizontalPodAutoscaler.
type Advanced struct {
	HorizontalPodAutoscalerConfig HorizontalPodAutoscalerConfig `json:"horizontalPodAutoscalerConfig"`
	ScalingModifiers              *ScalingModifiers             `json:"scalingModifiers,omitempty"`
}

// ScalingModifiers make one metric of all triggers, by whose names Formula has them. Target is its
// value for a replica.
type ScalingModifiers struct {
	Formula string `json:"formula"`
	Target  string `json:"target"`
}

// HorizontalPodAutoscalerConfig has the autoscaler's own behaviour.
type HorizontalPodAutoscalerConfig struct {
	Behavior autoscalingv2.HorizontalPodAutoscalerBehavior `json:"behavior"`
}

// Trigger is one thing that the workload is scaled by. What Metadata of the controller's
// triggers may have is in docs/reference/triggers.md.
type Trigger struct {
	Type              string             `json:"type"`
	Name              string             `json:"name"`
	UseCachedMetrics  bool               `json:"useCachedMetrics,omitempty"`
	Metadata          map[string]string  `json:"metadata"`
	AuthenticationRef *AuthenticationRef `json:"authenticationRef,omitempty"`
}

// AuthenticationRef names the object that says how KEDA reaches the controller or
// Prometheus.
type AuthenticationRef struct {
	Kind string `json:"kind"`
	Name string `json:"name"`
}

// TriggerAuthentication tells KEDA where certificates and credentials are.
type TriggerAuthentication struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        Metadata           `json:"metadata"`
	Spec            AuthenticationSpec `json:"spec"`
}

// AuthenticationSpec of a TriggerAuthentication.
type AuthenticationSpec struct {
	PodIdentity     *PodIdentity      `json:"podIdentity,omitempty"`
	SecretTargetRef []SecretTargetRef `json:"secretTargetRef,omitempty"`
}

// PodIdentity says whose rights KEDA's pod has.
type PodIdentity struct {
	Provider string `json:"provider"`
}

// SecretTargetRef gives a parameter of the trigger the value of a Secret's key.
type SecretTargetRef struct {
	Parameter string `json:"parameter"`
	Name      string `json:"name"`
	Key       string `json:"key"`
}
