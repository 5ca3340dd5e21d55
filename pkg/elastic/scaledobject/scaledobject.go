// Package scaledobject builds the KEDA objects that scale a workload: a ScaledObject with triggers for the
// signals of a profile, and TriggerAuthentications. It knows the engines' metrics, and never reads a cluster.
package scaledobject

import (
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// apiVersion is that of KEDA's kinds.
const apiVersion = "keda.sh/v1alpha1"

// ScaledObject has the fields of KEDA's kind that Build sets. KEDA's own types would import the clients of
// all its scalers.
type ScaledObject struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        Metadata `json:"metadata"`
	Spec            Spec     `json:"spec"`
}

// Metadata of an object. Without a namespace, kubectl uses its default.
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

// ScaleTargetRef names the workload.
type ScaleTargetRef struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Name       string `json:"name"`
}

// Fallback applies after more than FailureThreshold failures of a trigger.
type Fallback struct {
	FailureThreshold int32  `json:"failureThreshold"`
	Replicas         int32  `json:"replicas"`
	Behavior         string `json:"behavior"`
}

// Advanced configures the HorizontalPodAutoscaler.
type Advanced struct {
	HorizontalPodAutoscalerConfig HorizontalPodAutoscalerConfig `json:"horizontalPodAutoscalerConfig"`
	ScalingModifiers              *ScalingModifiers             `json:"scalingModifiers,omitempty"`
}

// ScalingModifiers make one metric of all triggers, which Formula uses by their names. Target is its
// value per replica.
type ScalingModifiers struct {
	Formula string `json:"formula"`
	Target  string `json:"target"`
}

// HorizontalPodAutoscalerConfig has the autoscaler's own behavior.
type HorizontalPodAutoscalerConfig struct {
	Behavior autoscalingv2.HorizontalPodAutoscalerBehavior `json:"behavior"`
}

// Trigger is one source of a metric. docs/reference/triggers.md describes Metadata of the controller's
// triggers.
type Trigger struct {
	Type              string             `json:"type"`
	Name              string             `json:"name"`
	UseCachedMetrics  bool               `json:"useCachedMetrics,omitempty"`
	Metadata          map[string]string  `json:"metadata"`
	AuthenticationRef *AuthenticationRef `json:"authenticationRef,omitempty"`
}

// AuthenticationRef names a TriggerAuthentication or ClusterTriggerAuthentication.
type AuthenticationRef struct {
	Kind string `json:"kind"`
	Name string `json:"name"`
}

// TriggerAuthentication has the certificates and credentials for a trigger.
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

// PodIdentity makes KEDA use its own pod's identity.
type PodIdentity struct {
	Provider string `json:"provider"`
}

// SecretTargetRef sets a parameter of the trigger to the value of a Secret's key.
type SecretTargetRef struct {
	Parameter string `json:"parameter"`
	Name      string `json:"name"`
	Key       string `json:"key"`
}
