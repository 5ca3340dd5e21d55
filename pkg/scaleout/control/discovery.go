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
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/excerpt"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
)

// Discovery declares node groups that somebody else lists, such as EKS, and keeps what it has declared
// as it is there. What anyone else has set in a group is theirs: the API server tells by field who set
// it last (server-side apply).
type Discovery struct {
	Client client.Client
	Clock  clock.WithTicker
	// List gives all node groups. The error is of a list that is not whole.
	List func(context.Context) ([]view.Discovered, error)
	// Pairing of groups that are new; those that exist keep theirs. Empty: observe.
	Pairing v1alpha1.Pairing

	// told has the errors of the last time: each is logged when it is new.
	told map[string]bool
}

const (
	// discoveryPeriod is how often node groups are listed: they are made by hand.
	discoveryPeriod = 5 * time.Minute
	// discoveredFromEKS tells groups that EKS has listed.
	discoveredFromEKS = "eks"
	// discoveryManager owns the fields that Discovery has set.
	discoveryManager = "mica-discovery"
)

// NeedLeaderElection tells the manager that one replica runs it.
func (*Discovery) NeedLeaderElection() bool { return true }

// Start runs until ctx ends.
func (d *Discovery) Start(ctx context.Context) error {
	for {
		d.logNew(ctx, d.Once(ctx))
		timer := d.Clock.NewTimer(discoveryPeriod)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C():
		}
	}
}

func (d *Discovery) logNew(ctx context.Context, err error) {
	told := map[string]bool{}
	for _, one := range split(err) {
		text := one.Error()
		told[text] = true
		if !d.told[text] && ctx.Err() == nil {
			klog.FromContext(ctx).Error(one, "Could not discover all node groups; it is tried again", "every", discoveryPeriod)
		}
	}
	d.told = told
}

// Once declares the node groups that nobody has declared, by whatever name, and brings those that it has
// declared up to date. One that cannot be read, or is gone, says so in its condition. The error joins
// what could not be done; the rest is.
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
		failures = append(failures, d.one(ctx, found[i], groups))
	}
	for i := range declared.Items {
		group := &declared.Items[i]
		if name := nodegroupOf(group); ofEKS(group) && !listed[name] {
			failures = append(failures, d.tell(ctx, group, metav1.ConditionFalse, v1alpha1.ReasonNodegroupGone,
				fmt.Sprintf("EKS does not list the node group %s any more, and it is not scaled: delete the GPUNodeGroup if that is meant", name)))
		}
	}
	return errors.Join(failures...)
}

// groups are those that are declared, by their node groups and by their names.
type groups struct {
	byNodegroup, byName map[string]*v1alpha1.GPUNodeGroup
}

func declaredGroups(all []v1alpha1.GPUNodeGroup) groups {
	g := groups{map[string]*v1alpha1.GPUNodeGroup{}, map[string]*v1alpha1.GPUNodeGroup{}}
	for i := range all {
		g.byName[all[i].Name] = &all[i]
		// One that somebody has declared counts before one that was discovered.
		if name := nodegroupOf(&all[i]); name != "" && (g.byNodegroup[name] == nil || !ofEKS(&all[i])) {
			g.byNodegroup[name] = &all[i]
		}
	}
	return g
}

func nodegroupOf(group *v1alpha1.GPUNodeGroup) string {
	return group.Spec.Provider.Selector()[v1alpha1.LabelEKSNodegroup]
}

// ofEKS tells a group that Discovery has declared.
func ofEKS(group *v1alpha1.GPUNodeGroup) bool {
	return group.Labels[v1alpha1.LabelDiscovered] == discoveredFromEKS
}

// one declares a node group, or brings its GPUNodeGroup up to date.
func (d *Discovery) one(ctx context.Context, found view.Discovered, known groups) error {
	group := known.byNodegroup[found.Nodegroup]
	if group != nil && !ofEKS(group) {
		return nil // it is somebody's
	}
	err := found.Err
	if err == nil && found.Group == nil && group != nil {
		err = errors.New("EKS says that its machines are of several types, or of none with NVIDIA's GPUs, of which nothing can be predicted: declare what new nodes have in spec, and remove the label " + v1alpha1.LabelDiscovered)
	}
	if err == nil && found.Group != nil {
		if group == nil && known.byName[found.Group.Name] != nil {
			return fmt.Errorf("declare the node group %s: a GPUNodeGroup %s exists and selects other nodes: declare one for it under another name", found.Nodegroup, found.Group.Name)
		}
		err = d.apply(ctx, found.Group, group)
	}
	if group == nil && err == nil {
		group = found.Group
	}
	switch {
	case group == nil:
		return err // there is nothing that could have a condition
	case err != nil:
		return errors.Join(err, d.tell(ctx, group, metav1.ConditionUnknown, v1alpha1.ReasonNotRead,
			fmt.Sprintf("What EKS last said of the node group counts on, since it cannot be brought up to date: %s", err)))
	}
	return d.tell(ctx, group, metav1.ConditionTrue, v1alpha1.ReasonListed, "The group is as EKS says, but for what somebody else has set in its spec.")
}

// apply sets the fields of a group that nobody else has set. Before is nil for one that is new.
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
		err := d.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(fields), client.FieldOwner(discoveryManager))
		if apierrors.IsConflict(err) && withoutOthers(fields, err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("declare the node group %s as GPUNodeGroup %s: %w", nodegroupOf(group), fields.GetName(), err)
		}
		if before == nil {
			klog.FromContext(ctx).Info("Declared a node group that was found", "gpuNodeGroup", fields.GetName(), "from", discoveredFromEKS)
		}
		return nil
	}
}

// applied has the fields that are set at all, without a status, and the minimum, of which zero is one.
func applied(group *v1alpha1.GPUNodeGroup) (*unstructured.Unstructured, error) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(group)
	if err != nil {
		return nil, fmt.Errorf("declare GPUNodeGroup %s: %w", group.Name, err)
	}
	fields := &unstructured.Unstructured{Object: map[string]any{
		"metadata": map[string]any{"name": group.Name, "labels": map[string]any{v1alpha1.LabelDiscovered: discoveredFromEKS}},
		"spec":     content["spec"],
	}}
	// Whoever declares a group does not write down the zero of a duration.
	unstructured.RemoveNestedField(fields.Object, "spec", "provisionTimeout")
	fields.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("GPUNodeGroup"))
	return fields, nil
}

// withoutOthers leaves out the fields that the API server says are somebody else's, and tells whether
// there were any.
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

// labelsPath is of the one map that is set, whose keys have dots of their own.
const labelsPath = "spec.template.labels."

func fieldPath(field string) []string {
	field = strings.TrimPrefix(field, ".")
	if key, is := strings.CutPrefix(field, labelsPath); is {
		return append(strings.Split(strings.TrimSuffix(labelsPath, "."), "."), key)
	}
	return strings.Split(field, ".")
}

// tell sets the condition of a group, as it is now, that says how it stands with EKS.
func (d *Discovery) tell(ctx context.Context, group *v1alpha1.GPUNodeGroup, status metav1.ConditionStatus, reason, message string) error {
	var now v1alpha1.GPUNodeGroup
	if err := d.Client.Get(ctx, types.NamespacedName{Name: group.Name}, &now); err != nil {
		return client.IgnoreNotFound(err)
	}
	before := slices.Clone(now.Status.Conditions)
	changed := meta.SetStatusCondition(&now.Status.Conditions, metav1.Condition{
		Type: v1alpha1.ConditionDiscovered, Status: status, Reason: reason,
		Message: excerpt.Of(message, maxConditionMessage), LastTransitionTime: metav1.NewTime(d.Clock.Now().Truncate(time.Second)),
		ObservedGeneration: now.Generation,
	})
	was := meta.FindStatusCondition(before, v1alpha1.ConditionDiscovered)
	if !changed {
		return nil
	}
	if err := d.Client.Status().Update(ctx, &now); err != nil {
		return client.IgnoreNotFound(fmt.Errorf("write the status of GPUNodeGroup %s: %w", group.Name, err))
	}
	if was == nil || was.Status != status {
		klog.FromContext(ctx).Info("How a node group stands with EKS has changed", "gpuNodeGroup", group.Name, "discovered", status, "message", message)
	}
	return nil
}
