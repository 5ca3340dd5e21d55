package control

import (
	"context"
	"fmt"
	"maps"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
)

// Watch requests a pass when an object that passes read has changed. It starts the informers in all replicas, so that a new
// leader knows the cluster.
func (l *Loop) Watch(ctx context.Context, informers cache.Informers) error {
	for _, kind := range []struct {
		object   client.Object
		optional bool
	}{
		{&corev1.Pod{}, false},
		{&corev1.Node{}, false},
		{&corev1.Event{}, false},
		{&corev1.ConfigMap{}, false},
		{&appsv1.DaemonSet{}, false},
		{&resourceapi.ResourceSlice{}, false},
		{&resourceapi.ResourceClaim{}, false},
		{&resourceapi.ResourceClaimTemplate{}, false},
		{&resourceapi.DeviceClass{}, false},
		{&resourceapi.DeviceTaintRule{}, true},
		{&v1alpha1.GPUNodeGroup{}, false},
		{&v1alpha1.GPUHeadroom{}, false},
		{&v1alpha1.GPUBudget{}, true}, // helm upgrade adds no CRD
		{&v1alpha1.GPUPolicy{}, false},
		{&v1alpha1.GPUNode{}, false},
	} {
		informer, err := informers.GetInformer(ctx, kind.object, cache.BlockUntilSynced(false))
		if kind.optional && meta.IsNoMatchError(err) {
			klog.FromContext(ctx).Info("The API server does not serve a kind; assuming that there are no objects", "kind", fmt.Sprintf("%T", kind.object))
			continue
		}
		if err != nil {
			return fmt.Errorf("watch %T: %w: install Mica's CRDs, and a Kubernetes that serves resource.k8s.io/v1", kind.object, err)
		}
		if _, err := informer.AddEventHandler(l.handler()); err != nil {
			return fmt.Errorf("watch %T: %w", kind.object, err)
		}
	}
	return nil
}

func (l *Loop) handler() toolscache.ResourceEventHandler {
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { l.Enqueue() },
		UpdateFunc: func(before, after any) {
			if matters(before, after) {
				l.Enqueue()
			}
		},
		DeleteFunc: func(any) { l.Enqueue() },
	}
}

// matters ignores updates that change no decision, such as heartbeats of nodes and this controller's conditions of pods.
func matters(before, after any) bool {
	switch after := after.(type) {
	case *corev1.Pod:
		before, same := before.(*corev1.Pod)
		return !same || podChanged(before, after)
	case *corev1.Node:
		before, same := before.(*corev1.Node)
		return !same || nodeChanged(before, after)
	case *v1alpha1.GPUPolicy: // its status changes no decision
		before, same := before.(*v1alpha1.GPUPolicy)
		return !same || before.UID != after.UID || before.Generation != after.Generation
	case *v1alpha1.GPUNode: // nor does the rest of the status
		before, same := before.(*v1alpha1.GPUNode)
		return !same || before.Withheld != after.Withheld
	default:
		return true
	}
}

func podChanged(before, after *corev1.Pod) bool {
	return before.UID != after.UID ||
		before.Generation != after.Generation ||
		before.Spec.NodeName != after.Spec.NodeName ||
		before.Status.Phase != after.Status.Phase ||
		before.DeletionTimestamp.IsZero() != after.DeletionTimestamp.IsZero() ||
		before.Status.NominatedNodeName != after.Status.NominatedNodeName ||
		view.Tried(before) != view.Tried(after) ||
		before.Annotations[v1alpha1.AnnotationScaleUpDelay] != after.Annotations[v1alpha1.AnnotationScaleUpDelay] ||
		len(before.Spec.SchedulingGates) != len(after.Spec.SchedulingGates) ||
		!apiequality.Semantic.DeepEqual(before.Status.ResourceClaimStatuses, after.Status.ResourceClaimStatuses) ||
		!maps.Equal(before.Labels, after.Labels)
}

func nodeChanged(before, after *corev1.Node) bool {
	return before.UID != after.UID ||
		before.DeletionTimestamp.IsZero() != after.DeletionTimestamp.IsZero() ||
		before.Spec.Unschedulable != after.Spec.Unschedulable ||
		view.IsReady(before) != view.IsReady(after) ||
		!maps.Equal(before.Labels, after.Labels) ||
		!maps.Equal(before.Annotations, after.Annotations) ||
		!apiequality.Semantic.DeepEqual(before.Spec.Taints, after.Spec.Taints) ||
		!apiequality.Semantic.DeepEqual(before.Status.Allocatable, after.Status.Allocatable)
}
