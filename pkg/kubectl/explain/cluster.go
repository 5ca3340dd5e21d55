package explain

import (
	"context"
	"fmt"
	"reflect"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mica-gpu/mica/api/v1alpha1"
)

// Cluster is a cluster with the objects of a manifest added.
type Cluster struct {
	// Base is the cluster itself; nil: there is none.
	Base     client.Reader
	Manifest *Manifest
	// Templates are instance types. If there are any, pods find new nodes of these types alone, and no node,
	// pod or node group of Base.
	Templates []string
}

// Get reads Base.
func (c Cluster) Get(ctx context.Context, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
	if c.Base == nil {
		return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
	}
	return c.Base.Get(ctx, key, object, options...)
}

// List adds the manifest's objects to those of Base. They replace objects of the same name, except for
// ResourceClaims, whose specs cannot change.
func (c Cluster) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	if c.Base != nil && !c.hides(list) {
		if err := c.Base.List(ctx, list, options...); err != nil {
			return err
		}
	}
	items, err := meta.ExtractList(list)
	if err != nil {
		return fmt.Errorf("read a list of %T: %w", list, err)
	}
	at := map[client.ObjectKey]int{}
	for i := range items {
		at[client.ObjectKeyFromObject(items[i].(client.Object))] = i
	}
	for _, object := range c.objects() {
		if !holds(list, object) {
			continue
		}
		key := client.ObjectKeyFromObject(object)
		i, exists := at[key]
		switch object.(type) {
		case *corev1.Pod:
			if exists {
				return fmt.Errorf("pod %s exists: rename the one in the file, or run kubectl gpu explain pod/%s -n %s", key, key.Name, key.Namespace)
			}
		case *resourceapi.ResourceClaim:
			if exists {
				continue
			}
		}
		if exists {
			items[i] = object
		} else {
			items = append(items, object)
		}
	}
	return meta.SetList(list, items)
}

// hides reports whether the objects of Base are left out of a list.
func (c Cluster) hides(list client.ObjectList) bool {
	switch list.(type) {
	case *resourceapi.DeviceClassList, *resourceapi.ResourceClaimList, *resourceapi.ResourceClaimTemplateList,
		*appsv1.DaemonSetList, *v1alpha1.GPUPolicyList:
		return false
	}
	return len(c.Templates) > 0
}

// objects are those of the manifest, and a node group per instance type.
func (c Cluster) objects() []client.Object {
	all := c.Manifest.objects[:len(c.Manifest.objects):len(c.Manifest.objects)]
	for _, pod := range c.Manifest.pods {
		all = append(all, pod)
	}
	for _, instanceType := range c.Templates {
		all = append(all, groupOf(instanceType))
	}
	return all
}

// groupOf is a node group of an instance type, named after it.
func groupOf(instanceType string) *v1alpha1.GPUNodeGroup {
	group := &v1alpha1.GPUNodeGroup{}
	group.Name = instanceType
	group.Spec.InstanceType = instanceType
	group.Spec.Pairing = v1alpha1.PairingPlaceholder
	group.Spec.Provider.NodeSelector = map[string]string{corev1.LabelInstanceTypeStable: instanceType}
	return group
}

// holds reports whether the items of a list are of the object's type.
func holds(list client.ObjectList, object client.Object) bool {
	items, err := meta.GetItemsPtr(list)
	return err == nil && reflect.TypeOf(items).Elem().Elem() == reflect.TypeOf(object).Elem()
}
