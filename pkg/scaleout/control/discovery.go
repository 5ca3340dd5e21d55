package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/excerpt"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
)

// Discovery declares the node groups that EKS lists, and keeps the declarations up to date by server-side apply. Fields that
// another client has set stay.
type Discovery struct {
	Client client.Client
	Clock  clock.PassiveClock
	// List returns all node groups, or an error.
	List func(context.Context) ([]view.Discovered, error)
	// Pairing of new groups. Empty: observe.
	Pairing v1alpha1.Pairing

	errors errorLog
}

const (
	discoveryPeriod = 5 * time.Minute
	// discoveredFromEKS is the label's value of groups that Discovery has declared.
	discoveredFromEKS = "eks"
	fieldManager      = "mica-discovery"
)

// NeedLeaderElection: one replica runs it.
func (*Discovery) NeedLeaderElection() bool { return true }

// Start runs until ctx ends.
func (d *Discovery) Start(ctx context.Context) error {
	wait.UntilWithContext(ctx, func(ctx context.Context) { d.errors.log(ctx, d.Once(ctx), "Cannot discover all node groups; retrying") }, discoveryPeriod)
	return nil
}

// Once declares the undeclared node groups, and updates its own declarations. A group that cannot be read, or is gone, says so
// in its condition.
func (d *Discovery) Once(ctx context.Context) error {
	found, err := d.List(ctx)
	if err != nil {
		return err
	}
	var declared v1alpha1.GPUNodeGroupList
	if err := d.Client.List(ctx, &declared); err != nil {
		return fmt.Errorf("list gpunodegroups: %w", err)
	}
	groups := declaredGroups(declared.Items)
	listed := map[string]bool{}
	var failures []error
	for i := range found {
		listed[found[i].Nodegroup] = true
		failures = append(failures, d.declare(ctx, found[i], groups))
	}
	for i := range declared.Items {
		group := &declared.Items[i]
		if name := nodegroupOf(group); ofEKS(group) && !listed[name] {
			failures = append(failures, d.setCondition(ctx, group, metav1.ConditionFalse, v1alpha1.ReasonNodegroupGone,
				fmt.Sprintf("EKS does not list the node group %s any more, so it does not grow: if you have deleted it, delete the GPUNodeGroup, too", name)))
		}
	}
	return errors.Join(failures...)
}

// groups are the declared groups by their node group and by their name.
type groups struct {
	byNodegroup, byName map[string]*v1alpha1.GPUNodeGroup
}

func declaredGroups(all []v1alpha1.GPUNodeGroup) groups {
	g := groups{map[string]*v1alpha1.GPUNodeGroup{}, map[string]*v1alpha1.GPUNodeGroup{}}
	for i := range all {
		g.byName[all[i].Name] = &all[i]
		// An administrator's declaration precedes a discovered one.
		if name := nodegroupOf(&all[i]); name != "" && (g.byNodegroup[name] == nil || !ofEKS(&all[i])) {
			g.byNodegroup[name] = &all[i]
		}
	}
	return g
}

func nodegroupOf(group *v1alpha1.GPUNodeGroup) string {
	return group.Spec.Provider.Selector()[v1alpha1.LabelEKSNodegroup]
}

// ofEKS reports whether Discovery has declared a group.
func ofEKS(group *v1alpha1.GPUNodeGroup) bool {
	return group.Labels[v1alpha1.LabelDiscovered] == discoveredFromEKS
}

// declare creates or updates the GPUNodeGroup of a node group.
func (d *Discovery) declare(ctx context.Context, found view.Discovered, known groups) error {
	group := known.byNodegroup[found.Nodegroup]
	if group != nil && !ofEKS(group) {
		return nil // an administrator has declared it
	}
	err := found.Err
	if err == nil && found.Group == nil && group != nil {
		err = errors.New("its machines are of several types, or of none with NVIDIA's GPUs, so new nodes cannot be predicted: describe new nodes in spec, and remove the label " + v1alpha1.LabelDiscovered)
	}
	if err == nil && found.Group != nil {
		if group == nil && known.byName[found.Group.Name] != nil {
			return errNameTaken(found.Nodegroup, found.Group.Name)
		}
		err = d.apply(ctx, found.Group, group)
	}
	if group == nil && err == nil {
		group = found.Group
	}
	switch {
	case group == nil:
		return err // no object can have the condition
	case err != nil:
		return errors.Join(err, d.setCondition(ctx, group, metav1.ConditionUnknown, v1alpha1.ReasonNotRead,
			fmt.Sprintf("Cannot update the group from EKS; its last spec stays: %s", err)))
	}
	return d.setCondition(ctx, group, metav1.ConditionTrue, v1alpha1.ReasonListed, "The spec is as at EKS, except for fields that another client has set.")
}

// apply sets the fields of a group that no other client has set. before is nil for a new group.
func (d *Discovery) apply(ctx context.Context, group, before *v1alpha1.GPUNodeGroup) error {
	group = group.DeepCopy()
	group.Spec.Pairing = cmp.Or(d.Pairing, v1alpha1.PairingObserve)
	if before != nil {
		group.Spec.Pairing = before.Spec.Pairing
	}
	fields, err := applied(group)
	if err != nil {
		return err
	}
	if before != nil {
		fields.SetName(before.Name)
	}
	for {
		err := d.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(fields), client.FieldOwner(fieldManager))
		if apierrors.IsConflict(err) && withoutOthers(fields, err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("declare the node group %s as GPUNodeGroup %s: %w", nodegroupOf(group), fields.GetName(), err)
		}
		if before == nil {
			klog.FromContext(ctx).Info("Declared a discovered node group", "gpuNodeGroup", fields.GetName(), "from", discoveredFromEKS)
		}
		return nil
	}
}

// applied is the group's metadata and spec, without a status.
func applied(group *v1alpha1.GPUNodeGroup) (*unstructured.Unstructured, error) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(group)
	if err != nil {
		return nil, fmt.Errorf("declare GPUNodeGroup %s: %w", group.Name, err)
	}
	fields := &unstructured.Unstructured{Object: map[string]any{
		"metadata": map[string]any{"name": group.Name, "labels": map[string]any{v1alpha1.LabelDiscovered: discoveredFromEKS}},
		"spec":     content["spec"],
	}}
	// A zero duration would be invalid.
	unstructured.RemoveNestedField(fields.Object, "spec", "provisionTimeout")
	fields.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("GPUNodeGroup"))
	return fields, nil
}

// withoutOthers removes the fields of other clients, as the conflict names them. It reports whether it removed any.
func withoutOthers(fields *unstructured.Unstructured, conflict error) bool {
	var status apierrors.APIStatus
	if !errors.As(conflict, &status) || status.Status().Details == nil {
		return false
	}
	left := false
	for _, cause := range status.Status().Details.Causes {
		path := fieldPath(cause.Field)
		if _, has, _ := unstructured.NestedFieldNoCopy(fields.Object, path...); has && len(path) > 1 {
			unstructured.RemoveNestedField(fields.Object, path...)
			left = true
		}
	}
	return left
}

// labelsPath is the path of a map whose keys contain dots.
const labelsPath = "spec.template.labels."

func fieldPath(field string) []string {
	field = strings.TrimPrefix(field, ".")
	if key, is := strings.CutPrefix(field, labelsPath); is {
		return append(strings.Split(strings.TrimSuffix(labelsPath, "."), "."), key)
	}
	return strings.Split(field, ".")
}

// setCondition sets the condition Discovered in a group's current status.
func (d *Discovery) setCondition(ctx context.Context, group *v1alpha1.GPUNodeGroup, status metav1.ConditionStatus, reason, message string) error {
	var now v1alpha1.GPUNodeGroup
	if err := d.Client.Get(ctx, types.NamespacedName{Name: group.Name}, &now); err != nil {
		return client.IgnoreNotFound(err)
	}
	was := meta.FindStatusCondition(slices.Clone(now.Status.Conditions), v1alpha1.ConditionDiscovered)
	changed := meta.SetStatusCondition(&now.Status.Conditions, metav1.Condition{
		Type: v1alpha1.ConditionDiscovered, Status: status, Reason: reason,
		Message: excerpt.Of(message, maxConditionMessage), LastTransitionTime: metav1.NewTime(d.Clock.Now().Truncate(time.Second)),
		ObservedGeneration: now.Generation,
	})
	if !changed {
		return nil
	}
	if err := d.Client.Status().Update(ctx, &now); err != nil {
		return client.IgnoreNotFound(fmt.Errorf("write the status of GPUNodeGroup %s: %w", group.Name, err))
	}
	if was == nil || was.Status != status {
		klog.FromContext(ctx).Info("The condition of a discovered node group has changed", "gpuNodeGroup", group.Name, "discovered", status, "message", message)
	}
	return nil
}
