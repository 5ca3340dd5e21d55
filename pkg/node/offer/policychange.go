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

// rolesPatience is how long an API server that has just started may take to know
// who may read what: until then it refuses everybody.
const rolesPatience = 15 * time.Second

// onlySpec leaves out what grows with the cluster: what nodes made of a policy.
func onlySpec(object any) (any, error) {
	if policy, is := object.(*v1alpha1.GPUPolicy); is {
		policy.ManagedFields, policy.Status = nil, v1alpha1.GPUPolicyStatus{}
	}
	return object, nil
}

// onlyDeciding leaves out what decides nothing of a node's offer, or of when a fault ends.
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
	v.none, v.said = false, "" // there are some
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

// notShown is told that policies cannot be read, which is tried again. Without the
// definition there is no policy: the plugin may be there before it. One that may not be
// read any more stays in force.
func (v *policyView) notShown(ctx context.Context, r *cache.Reflector, err error) {
	absent, denied := apierrors.IsNotFound(err), apierrors.IsForbidden(err)
	if !absent && !denied {
		cache.DefaultWatchErrorHandler(ctx, r, err)
		return
	}
	v.mu.Lock()
	if news := err.Error() != v.said; news {
		v.said = err.Error()
		klog.FromContext(ctx).Info("GPUPolicies cannot be read, so this node goes by none that is new: install the CustomResourceDefinition gpupolicies.mica.gpu and the chart's ClusterRole", "reason", v.said)
	}
	none := absent || !v.policies.HasSynced() && time.Since(v.started) >= rolesPatience
	news := none && !v.none
	v.none = v.none || none
	v.mu.Unlock()
	if news {
		v.decides()
	}
}
