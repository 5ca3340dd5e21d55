package view

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout/autoscaler"
)

// byAutoscaler reports whether Cluster Autoscaler makes the group grow.
func byAutoscaler(group *v1alpha1.GPUNodeGroup) bool {
	return group.Spec.Pairing == v1alpha1.PairingPlaceholder || group.Spec.Pairing == ""
}

// providerMax is the limit of the autoscaler or of EKS; nil: unknown. If neither can be read now, it is the one in the
// group's status, so that a user without rights sees the group as the controller does.
func (r *reading) providerMax(group *v1alpha1.GPUNodeGroup) *int32 {
	switch {
	case byAutoscaler(group) && r.Autoscaler != nil:
		if g, known := r.Autoscaler.Of(group, r.Now); known && g.Max > 0 {
			return ptr.To(int32(g.Max))
		}
		return nil
	case group.Spec.Pairing == v1alpha1.PairingDirect:
		if answer, asked := r.eks[group.Name]; asked && answer.Err == nil {
			return ptr.To(int32(answer.Max))
		}
	case !byAutoscaler(group):
		return nil
	}
	return group.Status.ProviderMax
}

// providerSize is the desired size of the group at EKS; nil: unknown.
func (r *reading) providerSize(group *v1alpha1.GPUNodeGroup) *int32 {
	if group.Spec.Pairing != v1alpha1.PairingDirect {
		return nil
	}
	if answer, asked := r.eks[group.Name]; asked && answer.Err == nil {
		return ptr.To(int32(answer.Desired))
	}
	return group.Status.ProviderSize
}

// most is the lower of the limits in the spec and of the provider; nil if neither is known.
func (g *Group) most() *int {
	var most *int
	for _, limit := range []*int32{g.Object.Spec.Max, g.ProviderMax} {
		if limit != nil && (most == nil || int(*limit) < *most) {
			n := int(*limit)
			most = &n
		}
	}
	return most
}

// Closed says why a group may not grow now: a recent failure of its own or of Cluster Autoscaler; empty: it may. If
// status is nil, the autoscaler's backoff in the group's status counts.
func Closed(group *v1alpha1.GPUNodeGroup, status *autoscaler.Status, now time.Time) string {
	backoff := group.Status.Backoff
	if backoff != nil && !now.Before(backoff.Until.Time) {
		backoff = nil
	}
	switch gone := meta.FindStatusCondition(group.Status.Conditions, v1alpha1.ConditionDiscovered); {
	case gone != nil && gone.Status == metav1.ConditionFalse:
		return "is not scaled: " + gone.Message
	case backoff != nil && backoff.Reason != v1alpha1.ReasonAutoscalerBackedOff:
		return fmt.Sprintf("is left alone until %s after %s: %s", backoff.Until.UTC().Format(time.RFC3339), failures(backoff.Failures), backoff.Message)
	case !byAutoscaler(group):
		return ""
	case status != nil:
		if g, known := status.Of(group, now); known && g.Backoff {
			return g.BackedOff()
		}
	case backoff != nil:
		return backoff.Message
	}
	return ""
}

func failures(n int32) string {
	if n == 1 {
		return "a failure"
	}
	return fmt.Sprintf("%d failures in a row", n)
}
