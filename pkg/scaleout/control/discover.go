package control

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout/template"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
)

// discover declares each undeclared managed node group that has a complete node with our devices. It deletes its groups whose
// nodes went before anything was learned from them, since they could never grow.
func (l *Loop) discover(ctx context.Context, v *view.View) error {
	var failures []error
	for _, nodegroup := range undeclared(l.Driver, v) {
		failures = append(failures, createGroup(ctx, l.Client, discoveredGroup(nodegroup, l.DiscoveredPairing)))
	}
	for i := range v.GroupStates {
		if learnedNothing(&v.GroupStates[i]) {
			failures = append(failures, deleteGroup(ctx, l.Client, v.GroupStates[i].Object))
		}
	}
	return errors.Join(failures...)
}

// learnedNothing reports whether a group was discovered from nodes, was not changed since, and has no template.
func learnedNothing(group *view.Group) bool {
	object := group.Object
	return object.Labels[v1alpha1.LabelDiscovered] == discoveredFromNodes && object.Generation <= 1 && group.Refused == "" &&
		group.Template == nil && len(group.Nodes) == 0 && len(group.InFlight) == 0
}

func deleteGroup(ctx context.Context, c client.Client, group *v1alpha1.GPUNodeGroup) error {
	err := c.Delete(ctx, group, client.Preconditions{UID: &group.UID, ResourceVersion: &group.ResourceVersion})
	if err == nil {
		klog.FromContext(ctx).Info("Deleted a discovered node group whose nodes went before anything was learned from them", "gpuNodeGroup", klog.KObj(group))
		return nil
	}
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // the next pass looks again
	}
	return fmt.Errorf("delete the discovered GPUNodeGroup %s, whose nodes are gone: %w", group.Name, err)
}

// undeclared are the sorted names of undeclared managed node groups. Nodes that a group selects do not count, even if that
// group is refused.
func undeclared(driver string, v *view.View) []string {
	declared := map[string]bool{}
	var selectors []labels.Selector
	for _, state := range v.GroupStates {
		if selector := state.Object.Spec.Provider.Selector(); len(selector) > 0 {
			declared[selector[v1alpha1.LabelEKSNodegroup]] = true
			selectors = append(selectors, labels.SelectorFromSet(selector))
		}
	}
	published := map[string][]*resourceapi.ResourceSlice{}
	for _, slice := range v.Slices {
		if slice.Spec.NodeName != nil {
			published[*slice.Spec.NodeName] = append(published[*slice.Spec.NodeName], slice)
		}
	}
	var names []string
	for _, node := range v.Nodes {
		name := node.Object.Labels[v1alpha1.LabelEKSNodegroup]
		if name == "" || node.Group != "" || declared[name] || selected(node.Object, selectors) {
			continue
		}
		if view.IsReady(node.Object) && len(template.Missing(driver, nil, node.Object, published[node.Object.Name])) == 0 {
			declared[name] = true
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func selected(node *corev1.Node, selectors []labels.Selector) bool {
	return slices.ContainsFunc(selectors, func(s labels.Selector) bool { return s.Matches(labels.Set(node.Labels)) })
}

// discoveredFromNodes is the label's value of groups that were discovered from live nodes.
const discoveredFromNodes = "nodes"

func discoveredGroup(nodegroup string, pairing v1alpha1.Pairing) *v1alpha1.GPUNodeGroup {
	return &v1alpha1.GPUNodeGroup{
		ObjectMeta: metav1.ObjectMeta{
			Name:   view.DiscoveredName(nodegroup),
			Labels: map[string]string{v1alpha1.LabelDiscovered: discoveredFromNodes},
		},
		Spec: v1alpha1.GPUNodeGroupSpec{
			Provider: v1alpha1.NodeGroupProvider{EKS: &v1alpha1.EKSNodegroup{Nodegroup: nodegroup}},
			Pairing:  pairing,
		},
	}
}

func createGroup(ctx context.Context, c client.Client, group *v1alpha1.GPUNodeGroup) error {
	err := c.Create(ctx, group)
	if apierrors.IsAlreadyExists(err) {
		// The cache may be behind.
		var found v1alpha1.GPUNodeGroup
		if c.Get(ctx, client.ObjectKeyFromObject(group), &found) != nil || found.Spec.Provider.EKS != nil && found.Spec.Provider.EKS.Nodegroup == group.Spec.Provider.EKS.Nodegroup {
			return nil
		}
		return errNameTaken(group.Spec.Provider.EKS.Nodegroup, group.Name)
	}
	if err != nil {
		return fmt.Errorf("declare the node group %s: %w", group.Spec.Provider.EKS.Nodegroup, err)
	}
	klog.FromContext(ctx).Info("Declared a discovered node group", "gpuNodeGroup", klog.KObj(group), "from", group.Labels[v1alpha1.LabelDiscovered])
	return nil
}

func errNameTaken(nodegroup, name string) error {
	return fmt.Errorf("declare the node group %s: a GPUNodeGroup %s exists and selects other nodes: declare one for it under another name", nodegroup, name)
}
