package offer

import (
	"context"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/mica-gpu/mica/api/v1alpha1"
)

// rolesPatience is how long a starting API server may refuse everything because it has not loaded the
// roles.
const rolesPatience = 15 * time.Second

// onlySpec drops status, which grows with the cluster.
func onlySpec(object any) (any, error) {
	if policy, is := object.(*v1alpha1.GPUPolicy); is {
		policy.ManagedFields, policy.Status = nil, v1alpha1.GPUPolicyStatus{}
	}
	return object, nil
}

// onlyDeciding drops what affects neither the node's offer nor the end of a fault.
func onlyDeciding(object any) (any, error) {
	if node, is := object.(*corev1.Node); is {
		return &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: node.Name, UID: node.UID, ResourceVersion: node.ResourceVersion, Labels: node.Labels, Annotations: repairsOf(node)},
			Status:     corev1.NodeStatus{Capacity: devicePluginHas(node)},
		}, nil
	}
	return object, nil
}

func (v *policyView) policyChanged(before, after any) {
	v.mu.Lock()
	v.none, v.reported = false, "" // the API server has policies
	v.mu.Unlock()
	old, was := before.(*v1alpha1.GPUPolicy)
	now, is := after.(*v1alpha1.GPUPolicy)
	if !was || !is || old.UID != now.UID || old.Generation != now.Generation {
		v.decides()
	}
}

func (v *policyView) nodeChanged(before, after any) {
	old, was := before.(*corev1.Node)
	now, is := after.(*corev1.Node)
	if !was || !is || old.UID != now.UID || !maps.Equal(old.Labels, now.Labels) || !maps.Equal(old.Annotations, now.Annotations) || !equality.Semantic.DeepEqual(old.Status.Capacity, now.Status.Capacity) {
		v.decides()
	}
}

// notShown handles errors of reading policies, which are retried. Without the CustomResourceDefinition
// there is no policy: the plugin may start before it. A policy that may no longer be read stays in
// force.
func (v *policyView) notShown(ctx context.Context, r *cache.Reflector, err error) {
	absent, denied := apierrors.IsNotFound(err), apierrors.IsForbidden(err)
	if !absent && !denied {
		cache.DefaultWatchErrorHandler(ctx, r, err)
		return
	}
	v.mu.Lock()
	if err.Error() != v.reported {
		v.reported = err.Error()
		klog.FromContext(ctx).Info("Cannot read GPUPolicies; keeping the last known policy: install the CustomResourceDefinition gpupolicies.mica.gpu and the chart's ClusterRole", "reason", v.reported)
	}
	none := absent || !v.policies.HasSynced() && time.Since(v.started) >= rolesPatience
	changed := none && !v.none
	v.none = v.none || none
	v.mu.Unlock()
	if changed {
		v.decides()
	}
}
