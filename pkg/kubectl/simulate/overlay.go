package simulate

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mica-gpu/mica/api/v1alpha1"
)

// Overlay is a cluster as it would be with what a manifest has.
type Overlay struct {
	// Base is the cluster; nil: there is none.
	Base     client.Reader
	Manifest *Manifest
}

// Get reads the cluster alone.
func (o Overlay) Get(ctx context.Context, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
	if o.Base == nil {
		return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
	}
	return o.Base.Get(ctx, key, object, options...)
}

// List adds the manifest's objects to those of the cluster. Of claims and their templates, which
// nobody can change, those of the cluster count; of other kinds, the manifest's.
func (o Overlay) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	if o.Base != nil {
		if err := o.Base.List(ctx, list, options...); err != nil {
			return err
		}
	}
	m := o.Manifest
	switch l := list.(type) {
	case *corev1.PodList:
		return o.addPods(l)
	case *corev1.NodeList:
		l.Items = append(l.Items, m.nodes...)
	case *resourceapi.ResourceSliceList:
		l.Items = append(l.Items, m.slices...)
	case *resourceapi.ResourceClaimList:
		l.Items = unless(l.Items, m.claims)
	case *resourceapi.ResourceClaimTemplateList:
		l.Items = unless(l.Items, m.templates)
	case *resourceapi.DeviceClassList:
		l.Items = instead(l.Items, m.classes)
	case *v1alpha1.GPUPolicyList:
		l.Items = instead(l.Items, m.policies)
	case *v1alpha1.GPUNodeGroupList:
		before := slices.Clone(l.Items)
		l.Items = instead(l.Items, m.groups)
		keepStatus(l.Items, before)
	case *v1alpha1.GPUBudgetList:
		l.Items = instead(l.Items, m.budgets)
	}
	return nil
}

// addPods adds the pods that are simulated. One of the same name would be in their place.
func (o Overlay) addPods(l *corev1.PodList) error {
	exist := map[client.ObjectKey]bool{}
	for i := range l.Items {
		exist[client.ObjectKeyFromObject(&l.Items[i])] = true
	}
	l.Items = slices.Clone(l.Items)
	for _, pod := range o.Manifest.pods {
		if key := client.ObjectKeyFromObject(pod); exist[key] {
			return fmt.Errorf("pod %s exists: give the simulated one another name, or ask kubectl gpu explain pod/%s -n %s why it waits", key, key.Name, key.Namespace)
		}
		l.Items = append(l.Items, *pod)
	}
	return nil
}

// object is a pointer to a T, as all kinds of objects are.
type object[T any] interface {
	*T
	client.Object
}

func keys[T any, P object[T]](all []T) map[client.ObjectKey]bool {
	found := map[client.ObjectKey]bool{}
	for i := range all {
		found[client.ObjectKeyFromObject(P(&all[i]))] = true
	}
	return found
}

// unless adds those of which there is none of the same name.
func unless[T any, P object[T]](to, more []T) []T {
	has := keys[T, P](to)
	to = slices.Clone(to)
	for i := range more {
		if !has[client.ObjectKeyFromObject(P(&more[i]))] {
			to = append(to, more[i])
		}
	}
	return to
}

// instead adds them, and leaves out those of the same name.
func instead[T any, P object[T]](to, more []T) []T {
	return unless[T, P](more, to)
}

// keepStatus gives groups that the manifest changes what the controller has found out of them.
func keepStatus(groups, before []v1alpha1.GPUNodeGroup) {
	for i := range groups {
		was := named(before, func(g *v1alpha1.GPUNodeGroup) bool { return g.Name == groups[i].Name })
		if was != nil {
			groups[i].Status, groups[i].UID = was.Status, was.UID
		}
	}
}
