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

// discover makes a group of each managed node group that has a complete node with our devices
// and that nobody has declared. One whose nodes went before anything was learned of them is
// deleted again: it says nothing, and could never grow.
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

// learnedNothing tells a group that was made of nodes, of which nothing is known but its name,
// and that nobody has changed since.
func learnedNothing(group *view.Group) bool {
	object := group.Object
	return object.Labels[v1alpha1.LabelDiscovered] == discoveredFromNodes && object.Generation <= 1 && group.Refused == "" &&
		group.Template == nil && len(group.Nodes) == 0 && len(group.InFlight) == 0
}

func deleteGroup(ctx context.Context, c client.Client, group *v1alpha1.GPUNodeGroup) error {
	err := c.Delete(ctx, group, client.Preconditions{UID: &group.UID, ResourceVersion: &group.ResourceVersion})
	if err == nil {
		klog.FromContext(ctx).Info("Deleted a node group that was found and went before it was known", "gpuNodeGroup", klog.KObj(group))
		return nil
	}
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // it is gone, or not what it was: the next pass sees
	}
	return fmt.Errorf("delete GPUNodeGroup %s, which was found and went before it was known: %w", group.Name, err)
}

// undeclared are the names of managed node groups, in order. A node that any group selects is
// nobody's to discover, though that group may be refused: what is in doubt does not grow.
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
		if isReady(node.Object) && len(template.Missing(driver, nil, node.Object, published[node.Object.Name])) == 0 {
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

// discoveredFromNodes tells groups that live nodes have shown.
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
		// It may be the same one, which was made a moment ago.
		var found v1alpha1.GPUNodeGroup
		if c.Get(ctx, client.ObjectKeyFromObject(group), &found) != nil || found.Spec.Provider.EKS != nil && found.Spec.Provider.EKS.Nodegroup == group.Spec.Provider.EKS.Nodegroup {
			return nil
		}
		return fmt.Errorf("declare the node group %s: a GPUNodeGroup %s exists and selects other nodes: declare one for it under another name",
			group.Spec.Provider.EKS.Nodegroup, group.Name)
	}
	if err != nil {
		return fmt.Errorf("declare the node group %s: %w", group.Spec.Provider.EKS.Nodegroup, err)
	}
	klog.FromContext(ctx).Info("Declared a node group that was found", "gpuNodeGroup", klog.KObj(group), "from", group.Labels[v1alpha1.LabelDiscovered])
	return nil
}
