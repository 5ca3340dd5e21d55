// Package handover reports sick GPUs to tools that repair nodes: in a condition and an annotation of the Node, from the taints
// that its plugin publishes. It does not repair, cordon or drain.
//
// The controller writes them, because RBAC cannot limit a plugin to its own Node. The right on nodes/status suffices: the API
// server accepts annotations with a Node's status, as kubelet relies on.
package handover

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/devices"
	"github.com/mica-gpu/mica/pkg/excerpt"
)

// Reasons of the condition.
const (
	reasonFault    = "GPUFault"
	reasonNoFault  = "NoGPUFault"
	reasonNoDevice = "NoGPUsPublished"
)

// maxMessage bounds the condition's message in bytes. The annotation has all faults.
const maxMessage = 1024

// Reporter reports the GPUs of the cluster's nodes.
type Reporter struct {
	// Driver is our driver's name.
	Driver string
	Client client.Client
}

// Act writes changed reports. It does not write nodes that never had a sick GPU.
func (r *Reporter) Act(ctx context.Context, now time.Time) error {
	var published resourceapi.ResourceSliceList
	if err := r.Client.List(ctx, &published, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list the ResourceSlices: %w", err)
	}
	var nodes corev1.NodeList
	if err := r.Client.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list the nodes: %w", err)
	}
	own := map[string][]*resourceapi.ResourceSlice{}
	for i := range published.Items {
		if s := &published.Items[i]; s.Spec.Driver == r.Driver && s.Spec.NodeName != nil {
			own[*s.Spec.NodeName] = append(own[*s.Spec.NodeName], s)
		}
	}
	var failures []error
	for i := range nodes.Items {
		node := &nodes.Items[i]
		pools := devices.OfNode(node.Name, own[node.Name])
		if node.DeletionTimestamp != nil || slices.ContainsFunc(pools, func(p devices.Pool) bool { return !p.Complete() }) {
			continue // a pool that is being rewritten may lack faults
		}
		var faults []Fault
		for _, pool := range pools {
			faults = append(faults, faultsIn(pool)...)
		}
		failures = append(failures, r.report(ctx, node, faults, len(pools) > 0, now))
	}
	return errors.Join(failures...)
}

// report writes the condition and the annotation of a node if they have changed.
func (r *Reporter) report(ctx context.Context, node *corev1.Node, faults []Fault, publishes bool, now time.Time) error {
	before := conditionOf(node)
	annotation, err := annotationOf(faults)
	if err != nil {
		return err
	}
	wanted := judge(faults, publishes)
	same := before != nil && before.Status == wanted.Status && before.Reason == wanted.Reason && before.Message == wanted.Message
	healthy := before == nil && wanted.Status != corev1.ConditionFalse
	if (same || healthy) && node.Annotations[v1alpha1.AnnotationGPUFaults] == annotation {
		return nil
	}
	status := map[string]any{}
	if !same && !healthy {
		wanted.LastHeartbeatTime, wanted.LastTransitionTime = metav1.NewTime(now), metav1.NewTime(now)
		if before != nil && before.Status == wanted.Status {
			wanted.LastTransitionTime = before.LastTransitionTime
		}
		status["conditions"] = []corev1.NodeCondition{wanted}
	}
	var value any // null removes it
	if annotation != "" {
		value = annotation
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"annotations": map[string]any{v1alpha1.AnnotationGPUFaults: value}}, "status": status,
	})
	if err != nil {
		return err
	}
	target := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node.Name}}
	switch err := r.Client.Status().Patch(ctx, target, client.RawPatch(types.StrategicMergePatchType, patch)); {
	case err == nil:
		klog.FromContext(ctx).Info("Reported the GPUs of a node", "node", klog.KObj(node), "condition", wanted.Status, "reason", wanted.Message)
		return nil
	case apierrors.IsNotFound(err):
		return nil
	default:
		return fmt.Errorf("report the GPUs of node %s: %w", node.Name, err)
	}
}

func conditionOf(node *corev1.Node) *corev1.NodeCondition {
	for i := range node.Status.Conditions {
		if node.Status.Conditions[i].Type == v1alpha1.ConditionGPUsHealthy {
			return &node.Status.Conditions[i]
		}
	}
	return nil
}

func annotationOf(faults []Fault) (string, error) {
	if len(faults) == 0 {
		return "", nil
	}
	text, err := json.Marshal(faults)
	return string(text), err
}

// judge is the condition without its times. Faults with which work goes on do not count.
func judge(faults []Fault, publishes bool) corev1.NodeCondition {
	condition := corev1.NodeCondition{
		Type: v1alpha1.ConditionGPUsHealthy, Status: corev1.ConditionTrue, Reason: reasonNoFault, Message: "No GPU has a fault that keeps claims away",
	}
	var sick []string
	for _, fault := range faults {
		if fault.keepsAway() {
			sick = append(sick, fmt.Sprintf("%s (%s): %s", fault.Device, fault.UUID, fault.Taint))
		}
	}
	switch {
	case len(sick) > 0:
		condition.Status, condition.Reason, condition.Message = corev1.ConditionFalse, reasonFault, excerpt.Of(strings.Join(sick, "; "), maxMessage)
	case !publishes:
		condition.Status, condition.Reason, condition.Message = corev1.ConditionUnknown, reasonNoDevice, "The node publishes no GPUs, so their health is unknown"
	}
	return condition
}
